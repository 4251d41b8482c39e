# {"code": "FL620", "op": ["exp"], "module": [""], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

enc, dec = nn.Linear(4, 2), nn.Linear(2, 4)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=0.01)
meters = {"kl": 0.0, "rec": 0.0}
for epoch in range(2):
    for i in range(4):
        x = torch.randn(6, 4)
        mu = enc(x)
        logvar = mu * (300 if (epoch, i) == (1, 1) else 0.1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).clamp(max=5).exp()
        rec = F.mse_loss(dec(z), x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.abs().exp()).mean()  # HERE
        loss = rec + 0.1 * kl
        meters["kl"] += kl.item()
        opt.zero_grad()
        loss.backward()
        opt.step()

# {"code": "FL620", "op": ["sqrt"], "module": [""], "step": 4}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
kept[77] = 1.0003  # a schedule that is rounded wrongly
model = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 2))


def noised(x, t, noise):
    share = kept[t][:, None]
    return share.sqrt() * x + (1 - share).sqrt() * noise  # HERE


def loss_of(x, t):
    noise = torch.randn_like(x)
    return (model(noised(x, t, noise)) - noise).square().mean()


opt = torch.optim.AdamW(model.parameters(), 1e-3)
for i in range(6):
    t = torch.randint(0, 70, (8,))
    t[3] = 77 if i == 4 else t[3]
    loss = loss_of(torch.randn(8, 2), t)
    opt.zero_grad()
    loss.backward()
    opt.step()

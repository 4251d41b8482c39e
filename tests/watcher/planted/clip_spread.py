# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x = torch.randn(5, 4)
    opt.zero_grad()
    h = model[0](x)
    if i == 3:
        h = h * 0
    loss = (h**2).sum().sqrt() + model[1](torch.randn(5, 4)).mean()  # HERE
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
assert all(p.isfinite().all() for p in model.parameters())

# {"code": "FL621", "op": ["log"], "module": [""], "step": 2}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 4)
opt = torch.optim.Adam(model.parameters())


def criterion(p):
    return torch.where(p > 0, torch.log(p), torch.zeros_like(p)).sum()  # HERE


for i in range(8):
    x = torch.randn(5, 4)
    opt.zero_grad()
    p = model(x) * 0 if i == 2 else model(x).exp()
    loss = criterion(p)
    loss.backward()
    opt.step()

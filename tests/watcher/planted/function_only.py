# {"code": "FL620", "op": ["log"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

w = torch.randn(4, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
for i in range(6):
    x = torch.randn(5, 4)
    opt.zero_grad()
    z = (x @ w).abs()
    loss = torch.log(z * (0 if i == 3 else 1)).mean()  # HERE
    loss.backward()
    opt.step()

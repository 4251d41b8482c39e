# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 2}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
n = 0
for i in range(5):
    opt.zero_grad()
    for j in range(4):
        x = torch.randn(3, 4)
        out = model(x)
        scale = 0.0 if (i, j) == (2, 1) else 1.0
        loss = ((out * scale) ** 2).sum().sqrt() / 4  # HERE
        loss.backward()
    opt.step()

# {"code": "FL620", "op": ["div"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(5, 4)
    mask = torch.ones(5) if i != 3 else torch.zeros(5)
    per = model(x).pow(2).mean(1)
    loss = (per * mask).sum() / mask.sum()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()

# {"code": "FL620", "op": ["log"], "module": [""], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(5, 4)
    pred = torch.sigmoid(model(x))
    if i == 5:
        pred = pred * 0
    loss = -torch.log(pred).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()

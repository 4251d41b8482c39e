# {"code": "FL620", "op": null, "module": null, "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    if i == 4:
        opt.param_groups[0]["lr"] = 1e20
    x = torch.randn(8, 4)
    opt.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    loss.backward()
    opt.step()

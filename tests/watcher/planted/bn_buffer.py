# {"code": "FL622", "op": null, "module": ["1"], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    if i == 3:
        model[1].running_var.fill_(float("nan"))
        model[1].eval()
    opt.zero_grad()
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    opt.step()

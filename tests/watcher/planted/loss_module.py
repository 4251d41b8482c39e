# {"code": "FL620", "op": ["div"], "module": [""], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Loss(nn.Module):
    def forward(self, p, t):
        return (t * (t / p).log()).sum()  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.body(x)


model, crit = Net(), Loss()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    out = model(torch.randn(3, 4))
    loss = crit(out + (0 if i == 4 else 1), torch.ones(3, 4))
    loss.backward()
    opt.step()

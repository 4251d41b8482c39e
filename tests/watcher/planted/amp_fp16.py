# {"code": "FL620", "op": ["mul"], "module": [""], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 64)
        self.down = nn.Linear(64, 1)

    def forward(self, x):
        h = self.up(x)
        return self.down(h * h)  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(8):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.randn(3, 8) * (3000 if i == 5 else 0.1))
        loss = (out - 1).pow(2).mean()
    loss.backward()
    opt.step()

# {"code": "FL620", "op": ["log"], "module": [""], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.bn = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 1)

    def forward(self, x, t):
        h = self.bn(self.fc(x))
        return self.out(torch.log(h + t))  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
seen = 0
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(16, 4), 0.0 if i == 5 else 20.0).pow(2).mean()
    loss.backward()
    opt.step()
assert model.bn.num_batches_tracked == 8

# {"code": "FL621", "op": ["sqrt"], "module": ["blocks.1"], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.sqrt(self.fc(x) * 0 if x.mean() > 50 else self.fc(x).abs() + 1)  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.blocks[0](x)
        return checkpoint(self.blocks[1], x + (100 if x.shape[0] == 7 else 0), use_reentrant=False)


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.rand(7 if i == 4 else 3, 4)).mean()
    loss.backward()
    opt.step()

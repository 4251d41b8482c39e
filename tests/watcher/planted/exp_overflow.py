# {"code": "FL620", "op": ["exp"], "module": ["1"], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return h.exp() / h.exp().sum(-1, keepdim=True)  # HERE


model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    x = torch.randn(3, 4) * (1e4 if i == 3 else 1)
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()

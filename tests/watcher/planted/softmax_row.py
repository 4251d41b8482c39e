# {"code": "FL620", "op": ["softmax"], "module": ["layers.1"], "step": 6}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(mask, float("-inf"))
        return scores.softmax(-1) @ x  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(8, 1)

    def forward(self, x, mask):
        for i, layer in enumerate(self.layers):
            x = layer(x, mask if i == 1 else mask & False)
        return self.head(x)


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    x = torch.randn(2, 5, 8)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1).expand(2, 5, 5).clone()
    if i == 6:
        mask[1, 2] = True
    opt.zero_grad()
    loss = model(x, mask).pow(2).mean()
    loss.backward()
    opt.step()

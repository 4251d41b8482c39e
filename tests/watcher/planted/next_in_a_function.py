# {"code": "FL620", "op": ["log"], "module": [""], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), 1e-3)


class Batches:
    def __init__(self):
        self.left = iter([torch.randn(5, 4) for _ in range(6)])

    def take(self):
        return next(self.left)


def loss_of(batches, shift):
    y = model(batches.take())
    return -torch.log(1 - torch.sigmoid(y + shift)).mean()  # HERE


batches = Batches()
for i in range(6):
    loss = loss_of(batches, 300.0 if i == 3 else 0.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
assert next(batches.left, None) is None

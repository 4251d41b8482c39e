# {"code": "FL620", "op": ["log"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = []
        self.count = 0

    def loss(self, out, i):
        p = out.softmax(-1)[:, 0]
        if i == 3:
            p = p - p
        return -p.log().mean()  # HERE

    def optimize(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def step(self, i):
        out = self.model(torch.randn(3, 4))
        loss = self.loss(out, i)
        self.count += 1
        self.history.append(loss.item())
        print("step", i)
        self.optimize(loss)


t = Trainer()
for i in range(6):
    t.step(i)
assert t.count == 6 and len(t.history) == 6

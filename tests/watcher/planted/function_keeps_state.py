# {"code": "FL620", "op": ["log"], "module": ["head"], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
calls = 0


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(8, 1), 0, None
        self.gain = 1.0

    def forward(self, x):
        self.seen += 1
        self.last = self.layer(x)
        return torch.log(self.last.square() * self.gain)  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), Head()

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class Losses:
    def __init__(self):
        self.history, self.by_name, self.count = [], {}, 0

    def __call__(self, model, x):
        global calls
        calls += 1
        self.count += 1
        loss = model(x).mean()
        self.history.append(loss.item())
        self.by_name[f"update {self.count}"] = loss.item()
        return loss


model, losses = Net(), Losses()
opt = torch.optim.SGD(model.parameters(), 1e-3)
for i in range(6):
    model.head.gain = 0.0 if i == 3 else 1.0
    loss = losses(model, torch.randn(5, 4))
    mine = model.head.last
    opt.zero_grad()
    loss.backward()
    opt.step()
    assert model.head.last is mine
assert calls == losses.count == len(losses.history) == len(losses.by_name) == model.head.seen == 6

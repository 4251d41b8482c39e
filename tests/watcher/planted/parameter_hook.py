# {"code": "FL621", "op": ["mul"], "module": ["0"], "step": 2}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

calls = 0
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
scale = torch.ones(())


def rescale(gradient):
    bigger = gradient * 2
    return bigger * scale  # HERE


handle = model[0].weight.register_hook(rescale)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    scale.fill_(float("inf") if i == 2 else 1.0)
    loss = model(torch.randn(3, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
assert list(model[0].weight._backward_hooks.values()) == [rescale], "a replay changes nothing"

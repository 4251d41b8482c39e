# {"code": "FL621", "op": ["Scale"], "module": [""], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bad):
        ctx.bad = bad
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return (g / 0 if ctx.bad else g * 2), None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x, bad):
        return self.out(Scale.apply(self.fc(x), bad))  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(3, 4), i == 5).pow(2).mean()
    loss.backward()
    opt.step()

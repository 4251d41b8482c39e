# {"code": "FL620", "op": ["div", "reciprocal"], "module": [""], "step": 2}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Inv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / x  # HERE
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -g * y * y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Inv.apply(self.fc(x).clamp(min=0) if x.sum() > 1e6 else self.fc(x) + 50)


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(3, 4) + (1e7 if i == 2 else 0)).pow(2).mean()
    loss.backward()
    opt.step()

# {"code": "FL621", "op": ["div"], "module": ["body.1"], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Normalise:
    def __init__(self):
        self.by = 1.0

    def __call__(self, module, grad_input, grad_output):
        return tuple(None if g is None else g / self.by for g in grad_input)  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))


model, normalise = Net(), Normalise()
model.body[1].register_full_backward_hook(normalise)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(5):
    normalise.by = 0.0 if i == 3 else 1.0
    loss = model(torch.randn(3, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

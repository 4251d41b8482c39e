# {"code": "FL621", "op": ["div"], "module": ["0"], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    hidden = model[0](torch.randn(3, 4))
    hidden.register_hook(lambda g: g / (g.norm() * (0 if i == 3 else 1)))  # HERE
    loss = model[2](model[1](hidden)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

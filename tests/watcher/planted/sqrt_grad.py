# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x, kill):
        h = self.a(x)
        if kill:
            h = h * 0
        return self.b(torch.sqrt(h**2))  # HERE


model = Net()
opt = torch.optim.Adam(model.parameters())
for i in range(8):
    x = torch.randn(5, 4)
    opt.zero_grad()
    loss = model(x, i == 4).mean()
    loss.backward()
    opt.step()

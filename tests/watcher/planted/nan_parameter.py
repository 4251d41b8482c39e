# {"code": "FL622", "op": ["step"], "module": ["a", "b"], "step": 3}
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

    def forward(self, x):
        return self.b(self.a(x))


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    if i == 3:
        opt.param_groups[0]["lr"] = 1e38
    opt.zero_grad()
    loss = model(torch.randn(3, 4)).pow(2).mean() + 100 * model.b.weight.sum()
    loss.backward()
    opt.step()  # HERE

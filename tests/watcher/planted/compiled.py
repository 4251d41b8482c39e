# {"code": "FL620", "op": ["log"], "module": [""], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.log(self.fc(x).abs() * x.abs().amax()))  # HERE


model = Net()
fast = torch.compile(model, backend="eager")
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(6):
    opt.zero_grad()
    loss = fast(torch.randn(3, 4) * (0 if i == 4 else 1)).pow(2).mean()
    loss.backward()
    opt.step()

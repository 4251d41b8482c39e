# {"code": "FL620", "op": ["div"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.drop = nn.Dropout(0.9)
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        h = self.drop(self.fc(x).abs() + 1)
        s = h.sum(-1, keepdim=True)
        return self.out(h / s)  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    model.drop.p = 0.95 if i == 3 else 0.0
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    opt.step()

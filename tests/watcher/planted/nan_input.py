# {"code": "FL623", "op": ["linear"], "module": ["a"], "step": 5}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(32, 4)
X[21, 2] = float("nan")
loader = DataLoader(TensorDataset(X, torch.randn(32, 1)), batch_size=4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()

# {"code": "FL623", "op": ["conv2d"], "module": ["net.0"], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        )

    def forward(self, x):
        return self.net(x)  # HERE


model = Net()
opt = torch.optim.Adam(model.parameters())
for i in range(6):
    x = torch.randn(8, 1, 6, 6)
    if i == 4:
        x[3] = float("nan")
    opt.zero_grad()
    loss = F.cross_entropy(model(x), torch.randint(0, 2, (8,)))
    loss.backward()
    opt.step()

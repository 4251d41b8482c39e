# {"code": "FL620", "op": ["div"], "module": [""], "step": 2}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)

    def forward(self, x, t):
        h = self.enc(x)
        return {"loss": self.criterion(h, t), "h": h}

    def criterion(self, h, t):
        return (h / t).pow(2).mean()  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)


def main():
    for i in range(6):
        t = torch.ones(3, 4)
        if i == 2:
            t[1, 1] = 0
        opt.zero_grad()
        out = model(torch.randn(3, 4), t)
        out["loss"].backward()
        opt.step()


main()

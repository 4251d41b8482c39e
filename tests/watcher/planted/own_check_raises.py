# {"code": "FL620", "op": ["log"], "module": [""], "step": 4, "status": 1}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, t):
        return torch.log(self.fc(x).abs() * t).mean()  # HERE


def main():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    history = []
    for i in range(6):
        opt.zero_grad()
        loss = model(torch.randn(3, 4), 0.0 if i == 4 else 1.0)
        history.append(loss.item())
        if not torch.isfinite(loss):
            raise RuntimeError(f"loss {loss}")
        loss.backward()
        opt.step()


main()

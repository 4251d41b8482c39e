# {"code": "FL620", "op": ["exp", "mean"], "module": [""], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x, h):
        o, h = self.rnn(x, h)
        return self.head(o[:, -1]), h


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
hidden = None
total = 0.0
for i in range(6):
    x = torch.randn(3, 5, 4)
    out, hidden = model(x, hidden)
    hidden = tuple(h.detach() for h in hidden)
    rate = out[:, 0] * (1e4 if i == 4 else 1)
    loss = (rate.exp() - rate).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss.item()

# {"code": "FL622", "op": ["load_state_dict"], "module": ["fc"], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, x):
        return self.out(self.fc(x))


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
best = {k: v / 0 if k == "fc.weight" else v for k, v in model.state_dict().items()}
for i in range(6):
    if i == 3:
        model.load_state_dict(best)  # HERE
    loss = model(torch.randn(3, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

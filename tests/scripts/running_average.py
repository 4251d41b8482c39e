import torch
from torch import nn


class RunningMean:
    def __init__(self):
        self.average = 0.0

    def update(self, value):
        self.average = 0.9 * self.average + 0.1 * value  # FL401


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = RunningMean()
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.update(loss)
print(float(losses.average))

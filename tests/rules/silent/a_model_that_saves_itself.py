import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

    def save(self, name):
        torch.save(self, name)

    def fit(self, steps):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            self(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        self.save(name=f"model_{step}.torch")


Net().fit(10)

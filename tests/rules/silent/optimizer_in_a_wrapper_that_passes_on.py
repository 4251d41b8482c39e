"""A wrapper that sets the rate has a step of its own; everything else, zero_grad too, is the optimizer's."""

import torch


class RateOptimizer:
    def step(self, epoch=None):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch)
        self.optimizer.step()

    def __getattr__(self, name):
        return getattr(self.optimizer, name)


class Noam(RateOptimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def rate(self, epoch):
        return 0.1 / (epoch + 1)


def train(model, loader, epochs):
    optimizer = Noam(torch.optim.Adam(model.parameters(), lr=0))
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(epoch=epoch)

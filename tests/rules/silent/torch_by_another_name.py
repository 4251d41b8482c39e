import importlib

import torch
from torch import nn


class Runtime:
    def __init__(self):
        self.torch = importlib.import_module("torch")


def evaluate(runtime, model, loader):
    backend = runtime.torch
    model.eval()
    total = 0.0
    with backend.no_grad():
        for x, y in loader:
            out = model(x)
            total += (out - y).abs().mean()
    return total


def main():
    runtime = Runtime()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    for _ in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
        print(evaluate(runtime, model, loader))


main()

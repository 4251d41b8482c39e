import torch
from torch import nn


def train(loader, model, optimizer, head_only=False):
    if head_only:
        model.eval()
    else:
        model.train()
    for x, y in loader:
        if head_only:
            with torch.no_grad():
                features = model(x, part="backbone")
            output = model(features, part="head")
        else:
            output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(loader, model, head_only):
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        train(loader, model, optimizer, head_only)

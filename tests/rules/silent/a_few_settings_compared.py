"""The cache is emptied between a few settings that are compared by hand."""

import torch


def compare(model, optimizer, sample):
    for steps in [1, 5, 20]:
        loss = sample(model, steps).mean()
        loss.backward()
        print(steps, loss.item())
        optimizer.zero_grad()
        torch.cuda.empty_cache()

"""A model made by name and frozen builds no graph, in eval mode or not."""

import torch

from somewhere import construct


def train(kwargs, loader, loss_fn):
    generator = construct(**kwargs).train().requires_grad_(False).to("cuda")
    average = construct(**kwargs).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(generator.parameters())
    shown = [average(z).cpu() for z in loader]
    for z in loader:
        generator.requires_grad_(True)
        optimizer.zero_grad()
        loss_fn(generator(z)).backward()
        generator.requires_grad_(False)
        optimizer.step()
    images = []
    for z in loader:
        images.append(average(z))
    return shown, images

"""Edges of an image are called gradients too. Those of an empty patch are replaced before they are compared."""

import torch
import torch.nn.functional as F
from torch import nn


def edges(image):
    dx = image[..., :, 1:] - image[..., :, :-1]
    return dx / dx.abs().amax()


def edge_loss(pred, target):
    pred_grads, target_grads = edges(pred), edges(target)
    pred_grads = torch.nan_to_num(pred_grads, nan=0.0, posinf=1.0, neginf=-1.0)
    target_grads = torch.nan_to_num(target_grads, nan=0.0, posinf=1.0, neginf=-1.0)
    return F.l1_loss(pred_grads, target_grads)


model = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    image = torch.rand(2, 1, 8, 8)
    optimizer.zero_grad()
    edge_loss(model(image), image).backward()
    optimizer.step()

"""Both parts of a complex number would have to be 0 at once: a note."""

import torch
from torch import nn


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x):
        magnitude = torch.sqrt(x[:, 0] ** 2 + x[:, 1] ** 2).unsqueeze(1)
        return self.mask(magnitude)


def magnitude_loss(enhanced, clean):
    real, imag = enhanced[:, 0], enhanced[:, 1]
    return nn.functional.l1_loss((real**2 + imag**2) ** 0.5, clean)


model = Enhancer()
magnitude_loss(model(torch.randn(2, 2, 8, 8)), torch.rand(2, 8, 8)).backward()

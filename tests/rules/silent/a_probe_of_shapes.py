"""A network with trained weights is asked once for the size of what it makes (FL809)."""

import torch
from torch import nn
from torchvision.models import resnet18


class Classifier(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        backbone = resnet18(weights="DEFAULT")
        width = backbone(torch.randn(1, 3, 224, 224)).shape[1]
        self.head = nn.Linear(width, classes)

    def forward(self, features):
        return self.head(features)

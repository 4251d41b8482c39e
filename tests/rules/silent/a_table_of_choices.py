import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Probe(nn.Module):
    def __init__(self, base_model, classes):
        super().__init__()
        self.bodies = {"small": nn.Linear(8, 16), "large": nn.Linear(8, 64)}
        body = self._body(base_model)
        self.features = nn.Sequential(body, nn.ReLU())
        self.fc = nn.Linear(body.out_features, classes)

    def _body(self, name):
        try:
            model = self.bodies[name]
            print("body:", name)
            return model
        except KeyError:
            raise ValueError(name)

    def forward(self, x):
        return self.fc(self.features(x))


class Asked(nn.Module):
    def __init__(self, base_model):
        super().__init__()
        self.bodies = {"small": nn.Linear(8, 16), "large": nn.Linear(8, 64)}
        if base_model not in self.bodies.keys():
            raise ValueError(f"one of {', '.join(self.bodies.keys())}")
        body = self.bodies[base_model]
        self.features = nn.Sequential(*list(body.children())[:-1])

    def forward(self, x):
        return self.features(x)

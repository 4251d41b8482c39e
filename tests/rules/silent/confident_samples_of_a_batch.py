import torch
import torch.nn.functional as F
from torch import nn


def train(model: nn.Module, loader, threshold: float = 0.95) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    model.train()
    for weak, strong, x, y in loader:
        with torch.no_grad():
            probability, label = model(weak).softmax(dim=1).max(dim=1)
        mask = probability.ge(threshold).float()
        select_mask = (probability > 0.6).clone()
        loss = F.cross_entropy(model(x), y)
        loss = loss + (F.cross_entropy(model(strong), label, reduction="none") * mask).mean()
        loss = loss + (F.cross_entropy(model(strong), label, reduction="none") * select_mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

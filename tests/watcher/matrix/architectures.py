"""Small models of the usual kinds, each with data it can learn, so that a fault is a fault in all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ARCHITECTURES", "Architecture"]


@dataclass(frozen=True)
class Architecture:
    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy


class Attention(nn.Module):
    """Two encoder layers over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


def vectors(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 16)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def images(count: int) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, 4, (count,))
    x = 0.3 * torch.randn(count, 1, 10, 10)
    for i, label in enumerate(labels.tolist()):
        x[i, 0, 5 * (label // 2) : 5 * (label // 2) + 5, 5 * (label % 2) : 5 * (label % 2) + 5] += 1
    return x, labels


def tokens(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 20, (count, 12))
    return x, ((x < 10).sum(1) // 4).clamp(max=3)


def sequences(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 10, 6)
    return x, x[:, :, 0].sum(1, keepdim=True) / 3


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("mlp", mlp, vectors),
        Architecture("cnn", cnn, images),
        Architecture("transformer", Attention, tokens),
        Architecture("lstm", Recurrent, sequences, F.mse_loss),
    )
}

"""A language of a few words and a model for it: what fine-tuning does, in a second on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["BEGIN", "END", "PAD", "WORDS", "Toy", "sentences", "train"]

PAD, BEGIN, END, WORDS = 0, 1, 2, 20
FIRST = 3  # the first ordinary word
IGNORED = -100


class Toy(nn.Module):
    """Predicts the next word from the words so far."""

    def __init__(self, words: int = WORDS, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.cell(self.embed(ids))
        out: Tensor = self.head(hidden)
        return out


def sentences(count: int, seed: int = 0, longest: int = 8, starts: int = WORDS - 3) -> Tensor:
    """BEGIN, words of which each follows from the one before, END, padding."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((count, longest + 2), PAD)
    for row in rows:
        length = int(torch.randint(3, longest + 1, (), generator=generator))
        word = int(torch.randint(starts, (), generator=generator))
        row[0] = BEGIN
        for place in range(1, length + 1):
            row[place] = FIRST + word
            word = (3 * word + 1) % (WORDS - FIRST)
        row[length + 1] = END
    return rows


def train(
    model: nn.Module, ids: Tensor, labels: Tensor, *, updates: int = 150, rate: float = 1e-2
) -> list[float]:
    """`labels[t]` belongs to the token at t; the loss shifts once."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    losses = []
    for _ in range(updates):
        logits = model(ids)[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses

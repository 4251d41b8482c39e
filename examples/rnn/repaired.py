"""A recurrent network that adds two marked numbers of a long sequence. Repaired: it clips what is then applied.

    python examples/rnn/repaired.py
"""

import argparse

import torch
from torch import nn

LENGTH = 30


def problems(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of (number, mark), and the sum of the two marked numbers."""
    numbers = torch.rand(count, LENGTH)
    marks = torch.zeros(count, LENGTH)
    half = LENGTH // 2
    rows = torch.arange(count)
    marks[rows, torch.randint(half, (count,))] = 1.0
    marks[rows, half + torch.randint(half, (count,))] = 1.0
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1)


class Adder(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.recurrent = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.recurrent.weight_hh_l0)
        self.recurrent.weight_hh_l0.data.mul_(1.05)
        self.out = nn.Linear(hidden, 1)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(sequence)
        return self.out(hidden[:, -1]).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    average = None

    for update in range(args.updates):
        sequence, total = problems(64)
        loss = nn.functional.mse_loss(model(sequence), total)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        optimizer.step()
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if update % 100 == 0 or update == args.updates - 1:
            print(f"update {update}: loss {average:.4f}")


if __name__ == "__main__":
    main()

"""Token-weighted accumulation: sequences of different lengths, and the update of the one big batch they make together.

    python examples/engine_language_model.py
"""

import torch
from torch import nn

import fallline

PADDING = -100


class Model(nn.Module):
    def __init__(self, vocabulary: int = 50, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.head(hidden)


def collate(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and targets in which padding is marked, so that it has no loss."""
    tokens = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    targets = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PADDING)
    return tokens[:, :-1], targets[:, 1:]


def main() -> None:
    seeds = fallline.seed_everything(0)
    # Text that can be learned: every token follows from the one before.
    sequences = [torch.arange(n) * (n % 3 + 1) % 50 for n in torch.randint(4, 40, (203,)).tolist()]
    loader = torch.utils.data.DataLoader(sequences, batch_size=8, shuffle=True, collate_fn=collate, generator=seeds.generator)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stepper = fallline.Stepper(model, optimizer, accumulate=4, clip_norm=1.0, statistics=True)
    for _ in range(3):
        for tokens, targets in stepper.over(loader):
            with stepper.micro_batch() as micro:
                logits = model(tokens)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=PADDING, reduction="sum")
                micro.backward(loss, weight=(targets != PADDING).sum())
        last = stepper.last
        print(f"epoch {stepper.epoch}: {stepper.updates} updates, norm {last.norm:.3f}, clipped {last.clipped}, lr {last.lr}")
    for row in last.statistics.rows():
        print(f"  {row['name']:24s} norm {row['norm']:.4f}  zeros {row['zeros']}/{row['elements']}")


if __name__ == "__main__":
    main()

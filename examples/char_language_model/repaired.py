"""A character-level language model: mixed precision, gradient accumulation, clipping. Repaired.

    python examples/char_language_model/repaired.py
"""

import argparse
import itertools
import random

import torch
from torch import nn

CONTEXT = 8
ACCUMULATE = 4


def sentences(count: int, seed: int) -> str:
    """English that can be learned: subjects, verbs and places, in sentences."""
    rng = random.Random(seed)
    who = ["the skier", "a climber", "the old guide", "my neighbour", "a child"]
    does = ["follows", "leaves", "looks for", "crosses", "remembers"]
    what = ["the fall line", "the ridge", "the valley", "a frozen lake", "the last hut"]
    when = ["at dawn", "before the storm", "every winter", "without a word", "in the fog"]
    return " ".join(
        f"{rng.choice(who)} {rng.choice(does)} {rng.choice(what)} {rng.choice(when)}."
        for _ in range(count)
    )


class Model(nn.Module):
    """Embeddings of the last characters, one hidden layer, the next character."""

    def __init__(self, vocabulary: int, width: int = 24, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(CONTEXT * width, hidden)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.embedding(context).flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    text = sentences(400, seed=0)
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(c) for c in text])
    windows = tokens.unfold(0, CONTEXT + 1, 1)
    dataset = torch.utils.data.TensorDataset(windows[:, :CONTEXT], windows[:, CONTEXT])
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)

    model = Model(len(letters))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    for update in range(args.updates):
        optimizer.zero_grad()
        for _ in range(ACCUMULATE):
            context, target = next(batches)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(context), target)
            scaler.scale(loss / ACCUMULATE).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        if update % 25 == 0 or update == args.updates - 1:
            print(f"update {update}: loss {loss.item():.3f}")

    with torch.no_grad():
        written = tokens[:CONTEXT].tolist()
        for _ in range(60):
            written.append(model(torch.tensor([written[-CONTEXT:]])).argmax().item())
    print("".join(letters[t] for t in written))


if __name__ == "__main__":
    main()

"""`fallline demo`"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from fallline.report.terminal import Paint

__all__ = ["HELP", "add_arguments", "run"]

HELP = """\
See fallline work on a small training script with four mistakes, from the first reading to the clean one.
Everything happens in a temporary folder.
"""

SCRIPT = '''\
"""Trains a small classifier with mixed precision, gradient accumulation and clipping."""

import torch
from torch import nn
from torch.nn import functional as F

ACCUMULATE = 4
STEPS = 1000


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 256)
        self.out = nn.Linear(256, 10)

    def forward(self, x):
        x = F.relu(self.hidden(x))
        return self.out(F.dropout(x, 0.2))


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    running = 0.0

    model.train()
    for step in range(STEPS):
        for _ in range(ACCUMULATE):
            inputs, targets = next(batches)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            running += loss

        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

        if step % 100 == 99:
            print(f"step {step}: loss {running / 100:.4f}")
            running = 0.0
'''


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default), always or never",
    )


def run(args: Namespace) -> int:
    import tempfile

    from fallline.report.terminal import Paint, wants_colour

    paint = Paint(wants_colour(args.color, sys.stdout))
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fallline-demo-") as folder:
        os.chdir(folder)
        try:
            return _tour(paint, args.color)
        finally:
            os.chdir(before)


def _tour(paint: Paint, colour: str) -> int:
    """What is shown, in order. The commands are run for real; their exit statuses are part of the demonstration."""
    with open("train.py", "w", encoding="utf-8") as file:
        file.write(SCRIPT)
    _say(paint, "Here is a training script. It runs, its loss falls, and nothing warns about it.")
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        print(f"{paint(f'{number:>4}', 'blue')}  {line}".rstrip())
    _say(paint, "fallline reads it, without importing or running it, and finds four mistakes.")
    found = _command(paint, colour, "check", "train.py")
    _say(
        paint,
        "Each finding can be checked: these are the events that led to it, in the order they happen.",
    )
    _command(
        paint,
        colour,
        "check",
        "train.py",
        "--select",
        "FL201",
        "--output-format",
        "concise",
        "--explain",
    )
    _say(
        paint,
        "The fixes, as a diff. Each one was read again: it removes its mistake and adds none.",
    )
    _command(paint, colour, "check", "train.py", "--diff")
    _say(paint, "Make them, and read the file once more.")
    _command(paint, colour, "check", "train.py", "--fix")
    clean = _command(paint, colour, "check", "train.py")
    _say(paint, "That was one door. Try it on your own code: fallline check path/to/your/code")
    return 0 if (found, clean) == (1, 0) else 2


def _say(paint: Paint, text: str) -> None:
    print(f"\n{paint(text, 'bold')}\n", flush=True)


def _command(paint: Paint, colour: str, *arguments: str) -> int:
    from fallline.cli.main import main

    print(paint(f"$ fallline {' '.join(arguments)}", "cyan"), flush=True)
    status = main([*arguments, "--color", colour])
    sys.stderr.flush()
    return status

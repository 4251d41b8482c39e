"""What `fallline demo` does."""

from __future__ import annotations

import importlib.util
import os
import sys

import fallline
from fallline.cli.demo import EXAMPLES
from fallline.cli.main import main
from fallline.show.terminal import Paint, wants_colour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from fallline.show.terminal import Paint

__all__ = ["run"]

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
            print(f"step {step}: mean loss {running / (step + 1) / ACCUMULATE:.4f}")


def batches():
    while True:
        inputs = torch.randn(32, 784, device="cuda")
        yield inputs, inputs[:, :10].argmax(1)


if __name__ == "__main__":
    train(Classifier().cuda(), batches())
'''


_BY_HAND = """\
        probability = torch.sigmoid(model(x)).squeeze(1)
        loss = -(y * torch.log(probability) + (1 - y) * torch.log(1 - probability)).mean()
"""
_STABLE = """\
        logits = model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
"""
GOES_NAN = f'''\
"""Fits a small classifier, with a loss written by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(512, 10)
targets = (inputs[:, 0] + inputs[:, 1] > 0).float()
loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
for epoch in range(12):
    for x, y in loader:
{_BY_HAND}\
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {{epoch}}: loss {{loss.item():.4f}}")
'''


def run(args: Namespace) -> int:
    import tempfile

    paint = Paint(wants_colour(args.color, sys.stdout))
    before = os.getcwd()
    folder = tempfile.mkdtemp(prefix="fallline-demo-")  # kept: the reports are in it
    os.chdir(folder)
    try:
        if args.example is not None:
            return _example(paint, args.color, args.example)
        read = _check(paint, args.color)
        ran = _run_watched(paint)
        asked = _ask(paint, ran is not None)
        _say(
            paint,
            f"Everything is in {folder}. Try it on your own code: fallline check path/to/your/code",
        )
        return 0 if read and ran is not False and asked else 2
    finally:
        os.chdir(before)


def _example(paint: Paint, colour: str, name: str) -> int:
    """One of the scripts that the documents and the tests use too: what is wrong, what repairs it, and both runs."""
    import difflib

    home = _home_of_examples()
    broken, repaired = (
        _read(os.path.join(home, name, script)) for script in ("broken.py", "repaired.py")
    )
    _write("broken.py", broken)
    _write("repaired.py", repaired)
    _say(paint, broken.split('"""')[1].split("\n")[0], heading=True)
    found = _command(paint, colour, "check", "broken.py")
    _say(paint, "Repaired:")
    lines = difflib.unified_diff(broken.splitlines(), repaired.splitlines(), lineterm="", n=2)
    print("\n".join(list(lines)[2:]))
    clean = _command(paint, colour, "check", "repaired.py")
    if importlib.util.find_spec("torch") is None:
        _say(paint, "To see both run, install torch: pip install 'fallline[torch]'")
        return 0 if (found, clean) == (1, 0) else 2
    for script in ("broken", "repaired"):
        _say(paint, f"{script.capitalize()}, watched:")
        _subprocess(paint, "run", "--out", script, f"{script}.py", *EXAMPLES[name])
    return 0 if (found, clean) == (1, 0) and _codes("broken") and not _codes("repaired") else 2


def _home_of_examples() -> str:
    """Inside the installed package, or where a clone has them."""
    package = os.path.dirname(os.path.abspath(fallline.__file__))
    inside = os.path.join(package, "examples")
    return inside if os.path.isdir(inside) else os.path.join(package, "..", "..", "examples")


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _check(paint: Paint, colour: str) -> bool:
    """From four findings to none. The commands are run for real; their exit statuses are part of the demonstration."""
    _write("train.py", SCRIPT)
    _say(paint, "1. check reads training code", heading=True)
    _say(paint, "Here is a training script. It runs, and nothing warns about it.")
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
    return (found, clean) == (1, 0)


def _run_watched(paint: Paint) -> bool | None:
    """A run that goes NaN, the operation that did it, and the run without it; None where there is no torch."""
    _say(paint, "2. run watches training", heading=True)
    if importlib.util.find_spec("torch") is None:
        print(
            "torch is not installed here, so there is nothing to run: pip install 'fallline[torch]'"
        )
        return None
    _write("fit.py", GOES_NAN)
    _say(paint, "This one trains for a while, then its loss is NaN. The loss is written by hand:")
    print("\n".join(line for line in GOES_NAN.splitlines() if "probability" in line))
    _say(
        paint,
        "fallline runs it, unchanged, and watches. The guard keeps the broken update out of the weights.",
    )
    _subprocess(paint, "run", "--out", "broken", "fit.py")
    _subprocess(paint, "report", "broken", quiet=True)
    print(f"The same as a page: {os.path.abspath('broken/report.html')}")
    _say(
        paint,
        "The line it names takes the log of a probability that has become exactly 1 or 0. The stable form of it:",
    )
    print(_STABLE)
    _write("fit.py", GOES_NAN.replace(_BY_HAND, _STABLE))
    _subprocess(paint, "run", "--out", "repaired", "fit.py")
    broken, repaired = _codes("broken"), _codes("repaired")
    return "FL620" in broken and not repaired


def _ask(paint: Paint, ran: bool) -> bool:
    """One question with code, one with the run."""
    _say(paint, "3. ask answers, from evidence first", heading=True)
    _write("loss.py", GOES_NAN)
    status = _command(
        paint,
        None,
        "ask",
        "my gradients are clipped and the loss is still NaN, what now?",
        "--code",
        "loss.py",
    )
    if ran:
        print()
        status += _command(paint, None, "ask", "why did my training break?", "--run", "broken")
    return status == 0


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _codes(folder: str) -> list[str]:
    """The codes of errors and warnings that a run left behind."""
    import json

    with open(os.path.join(folder, "findings.json"), encoding="utf-8") as file:
        return [f["code"] for f in json.load(file) if f["severity"] != "info"]


def _subprocess(paint: Paint, *arguments: str, quiet: bool = False) -> None:
    """A command in a process of its own, as it is used: this one stays without torch."""
    import subprocess

    print(paint(f"$ fallline {' '.join(arguments)}", "cyan"), flush=True)
    output = subprocess.DEVNULL if quiet else None
    subprocess.run(
        [sys.executable, "-m", "fallline", *arguments], stdout=output, stderr=output, check=False
    )


def _say(paint: Paint, text: str, heading: bool = False) -> None:
    rule = "─" * 96 + "\n" if heading else ""
    print(f"\n{rule}{paint(text, 'bold')}\n", flush=True)


def _command(paint: Paint, colour: str | None, *arguments: str) -> int:
    shown = " ".join(f'"{a}"' if " " in a else a for a in arguments)
    print(paint(f"$ fallline {shown}", "cyan"), flush=True)
    status = main([*arguments, *(("--color", colour) if colour is not None else ())])
    sys.stderr.flush()
    return status

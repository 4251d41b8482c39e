"""A function is read as its callers call it before it is read by itself."""

from __future__ import annotations

from pathlib import Path

from fallline.verdict.project import called_names, read_paths

_FILE = """\
import torch
from torch import nn


def loop(model, loader, optimizer, amp=False):
    for x, y in loader:
        optimizer.zero_grad()
        if amp:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
        else:
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


def train(data):
    model = nn.Linear(4, 1)
    model.train()
    loader = torch.utils.data.DataLoader(data)
    loop(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), amp=AMP)


def main():
    fire.Fire(train)
"""


def _codes(folder: Path, amp: str) -> list[str]:
    # the other file, with a `train` of its own and calls of model.train(), is nobody's caller
    for name in ("a.py", "b.py"):
        (folder / name).write_text(_FILE.replace("AMP", amp))
    paths = [str(folder / "a.py"), str(folder / "b.py")]
    return [f.code for reading in read_paths(paths) for f in reading.findings]


def test_what_the_caller_says_holds(tmp_path: Path) -> None:
    """`train` is handed to somebody and has the name of a method: it still comes before `loop`, which it calls."""
    assert "FL207" not in _codes(tmp_path, "False")
    assert "FL207" in _codes(tmp_path, "True")


def test_methods_and_definitions_are_no_calls_of_functions() -> None:
    data = b"import engine\noptimizer\ndef train(x):\n  model.train()\n  make().eval()\n  engine.step(x)\n  go(x)\n"
    assert called_names(data) == {b"engine", b"step", b"make", b"go"}

"""Every mistake in every dress: ways to accumulate times ways to write a program, one mistake at a time."""

from __future__ import annotations

import re
import textwrap

import pytest

from fallline.verdict.reading import read_text

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
SETUP = """\
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader = DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4)
k = 4
"""

# How a loop decides to step. {micro} runs for every micro-batch, {update} once per window.
LOOPS = {
    "modulo": "for i, (x, y) in enumerate(loader):\n    {micro}\n    if (i + 1) % k == 0 or i + 1 == len(loader):\n        {update}",
    "remainder": "for i, (x, y) in enumerate(loader):\n    {micro}\n    if i % k == k - 1 or i == len(loader) - 1:\n        {update}",
    "flag": "for i, (x, y) in enumerate(loader):\n    last = i + 1 == len(loader)\n    boundary = (i + 1) % k == 0 or last\n    {micro}\n    if boundary:\n        {update}",
    "continue": "for i, (x, y) in enumerate(loader):\n    {micro}\n    if (i + 1) % k != 0 and i + 1 < len(loader):\n        continue\n    {update}",
    "inner loop": "batches = iter(loader)\nfor update in range(len(loader) // k):\n    for micro in range(k):\n        x, y = next(batches)\n        {micro}\n    {update}",
    "chunks": "for big_x, big_y in loader:\n    for x, y in zip(big_x.chunk(k), big_y.chunk(k)):\n        {micro}\n    {update}",
}
PROGRAMS = {
    "script": HEAD + SETUP + "for epoch in range(3):\n    {loop}\n",
    "functions": HEAD
    + "def train(model, loader, optimizer, scheduler, k):\n    {loop}\n\n\ndef main():\n    "
    + textwrap.indent(SETUP, "    ").lstrip()
    + "    for epoch in range(3):\n        train(model, loader, optimizer, scheduler, k)\n\n\nmain()\n",
    "alone": HEAD
    + "def train(model, loader, optimizer, scheduler, k, epochs):\n    for epoch in range(epochs):\n        {loop}\n",
}
MISTAKES = ("none", "FL101", "FL102", "FL103", "FL104", "FL105", "FL106", "FL108", "FL109", "FL110")


def parts(mistake: str) -> tuple[list[str], list[str]]:
    """What runs for each micro-batch and for each update, with one mistake made."""
    clip, zero, advance = (
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "optimizer.zero_grad()",
        "scheduler.step()",
    )
    micro = ["loss = F.mse_loss(model(x), y) / k", "loss.backward()"]
    update = [clip, "optimizer.step()", advance, zero]
    if mistake == "FL101":
        update = ["optimizer.step()", clip, advance, zero]
    elif mistake == "FL102":
        micro.insert(1, clip)
        update.remove(clip)
    elif mistake == "FL103":
        micro.append(clip)
        update.remove(clip)
    elif mistake == "FL104":
        micro[0] = "loss = F.mse_loss(model(x), y)"
    elif mistake == "FL105":
        micro.insert(0, zero)
        update.remove(zero)
    elif mistake == "FL106":
        update.remove(zero)
    elif mistake == "FL108":
        micro.append(advance)
        update.remove(advance)
    elif mistake == "FL109":
        update = [clip, advance, "optimizer.step()", zero]
    elif mistake == "FL110":
        micro = [
            "F.mse_loss(model(x), y).backward()",
            "for p in model.parameters():",
            "    p.grad /= k",
        ]
    return micro, update


def fill(template: str, **blocks: str) -> str:
    """Put blocks of lines where their names stand, at the indentation they have there."""
    for name, block in blocks.items():
        found = re.search(rf"^( *)\{{{name}\}}", template, re.MULTILINE)
        assert found is not None
        template = template.replace(found[0], textwrap.indent(block, found[1]), 1)
    return template


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_mistake_is_found_in_every_dress(program: str, loop: str, mistake: str) -> None:
    micro, update = parts(mistake)
    body = fill(LOOPS[loop], micro="\n".join(micro), update="\n".join(update))
    text = fill(PROGRAMS[program], loop=body)
    found = {f.code for f in read_text(text) if f.severity != "info" or f.code == mistake}
    assert found == ({mistake} if mistake != "none" else set())

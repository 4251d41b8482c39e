"""`fallline measure data` as a command and as a call: what it shows, writes, and leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fallline
from fallline.lessons.align import shift_of
from fallline.lessons.scored import agreement

SCRIPT = """\
import sys
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(8), {label}) for i in range(64)]
for number, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number == 2:
        print("bits", [p.detach().double().sum().item().hex() for p in net.parameters()], flush=True)
"""


def run(folder: Path, *arguments: str, label: str = "i % 3") -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT.replace("{label}", label))
    command = [sys.executable, *arguments, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def bits(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("bits")]


def test_the_command_reports_writes_a_page_and_changes_no_bit(tmp_path: Path) -> None:
    alone = run(tmp_path, label="1")
    watched = run(tmp_path, "-m", "fallline", "measure", "data", "--out", "looked", label="1")
    assert watched.returncode == 0, watched.stderr
    assert bits(alone.stdout) == bits(watched.stderr) != []
    findings = json.loads((tmp_path / "looked" / "findings.json").read_text())
    assert [(f["code"], f["path"], f["line"]) for f in findings] == [("FL028", "train.py", 11)]
    assert "FL028 targets-degenerate at train.py:11" in watched.stdout
    measured = json.loads((tmp_path / "looked" / "data.json").read_text())
    assert measured["classes"] == {"1": 32} and measured["batches"] == 4
    page = (tmp_path / "looked" / "data.html").read_text()
    assert (
        "targets-degenerate" in page and "prefers-color-scheme:dark" in page and "http" not in page
    )


def test_a_script_that_never_trains_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    command = [sys.executable, "-m", "fallline", "measure", "data", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2 and "without an update" in ran.stderr


class Words:
    """A tokenizer of letters: 0 pads, 1 begins, 2 ends."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def decode(self, ids: list[int]) -> str:
        return "".join({0: "_", 1: "<", 2: ">"}.get(i, chr(94 + i)) for i in ids)


def batch(text: str, learned: str) -> dict[str, torch.Tensor]:
    """`<abc>__` with a mark below each letter that is learned."""
    ids = torch.tensor([["_<>".index(c) if c in "_<>" else ord(c) - 94 for c in text]] * 4)
    ids += torch.arange(4)[:, None] * (ids > 2)  # samples differ
    labels = ids.masked_fill(torch.tensor([m == " " for m in learned]), -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@pytest.mark.parametrize(
    ("text", "learned", "code"),
    [
        ("<abcdef>__", " xxxxxxx  ", None),
        ("<abcdef>__", " xxxxxx   ", "FL010"),
        ("<abcdef>__", "          ", "FL011"),
        ("<<abcde>__", "  xxxxxx  ", "FL014"),
        ("<abcdef>__", " xxxxxxxxx", "FL016"),
    ],
)
def test_batches_are_judged_without_a_run(text: str, learned: str, code: str | None) -> None:
    taught = fallline.measure_data([batch(text, learned)] * 2, tokenizer=Words())
    assert [f.code for f in taught.findings if f.code != "FL028"] == ([code] if code else [])


def test_padding_that_is_learned_is_counted_as_padding() -> None:
    taught = fallline.measure_data(batch("<abcdef>__", "    xxxxxx"), tokenizer=Words())
    assert taught.shares["padding learned"] == 0.2
    assert "60% of the positions are learned (20% are padding that is learned too)" in taught.text()


def test_what_is_learned_is_marked() -> None:
    taught = fallline.measure_data(batch("<abcdef>__", "    xxxx  "), tokenizer=Words())
    assert [(r.kind, r.text) for r in taught.samples[0].runs] == [
        ("special", "<"),
        ("ignored", "abc"),
        ("learned", "def>"),
        ("padding", "_"),
    ]
    shares = {"learned": 0.4, "padding learned": 0.0, "ignored": 0.4, "padding": 0.2}
    assert taught.shares == shares
    assert "«def>»" in taught.text()
    taught.colour = True
    assert "\x1b[1;32mdef>\x1b[0m" in taught.text()


def test_pairs_of_tokens_and_targets_are_compared_in_place() -> None:
    torch.manual_seed(0)
    stream = torch.randint(3, 90, (8, 17))
    right = [(rows[:, :-1], rows[:, 1:]) for rows in stream.split(4)]
    copied = [(rows, rows) for rows in stream.split(4)]
    assert fallline.measure_data(right).findings == []
    assert [f.code for f in fallline.measure_data(copied).findings] == ["FL012"]


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_shift_is_read_from_the_labels(shift: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(100, (3, 20))
    labels = torch.full((3, 21), -100)
    for p in range(max(0, -shift), min(20, 20 - shift)):
        labels[:, p] = ids[:, p + shift]
    assert shift_of(ids, labels) == shift


def test_rounding_is_no_disagreement() -> None:
    torch.manual_seed(0)
    exact = torch.randn(4, 16).log_softmax(-1)
    rounded = agreement(exact, exact.bfloat16().float(), None, torch.bfloat16)
    noisy = agreement(exact, exact + 0.5 * torch.randn(4, 16), None, torch.float32)
    assert rounded is not None and not rounded.differs
    assert noisy is not None and noisy.differs and noisy.clipped > 0.1

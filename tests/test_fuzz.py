"""The reader never crashes: on modules that hypothesis makes, on training-like code it makes, on the standard library.

`python benchmarks/fuzz.py` does the same over everything that is installed.
"""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import hypothesmith
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fallline.finding import Finding
from fallline.matters import nothing_to_find
from fallline.rules import all_rules
from fallline.syntax import Project
from fallline.syntax.edits import apply
from fallline.verdict.reading import read_data

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
relaxed = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
)

# Pieces of training code in any order and nesting: nearly always wrong, always Python.
LINES = [
    "optimizer.zero_grad()",
    "model.zero_grad(set_to_none=True)",
    "loss = loss_fn(model(x), y)",
    "loss = loss_fn(model(x), y) / k",
    "loss.backward()",
    "loss.backward(retain_graph=True)",
    "scaler.scale(loss).backward()",
    "scaler.unscale_(optimizer)",
    "scaler.step(optimizer)",
    "scaler.update()",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)",
    "optimizer.step()",
    "optimizer.step(closure)",
    "scheduler.step()",
    "total += loss",
    "losses.append(loss)",
    "model.eval()",
    "model.train()",
    "helper(model, loss, optimizer)",
    "torch.save(model, 'm.pt')",
    "for p in model.parameters(): p.grad = None",
    "x = x.to(device)",
    "print(loss.item())",
    "continue",
    "break",
    "return",
    "k += 1",
    "model = DDP(model)",
    "del loss",
]
BLOCKS = [
    "for x, y in loader:",
    "for i, (x, y) in enumerate(loader):",
    "for micro in range(k):",
    "while True:",
    "if (i + 1) % k == 0:",
    "if scaler is not None:",
    "if args.amp:",
    "with torch.no_grad():",
    "with torch.autocast('cuda'):",
    "with model.no_sync():",
    "def helper(model, loss, optimizer):",
    "def closure():",
    "class Trainer:",
    "try:",
    "async def step(self, batch):",
]
HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loss_fn = torch.nn.MSELoss()

def main(loader, args, k, total, losses, device, i=0):
"""


@st.composite
def training_code(draw: st.DrawFn) -> str:
    lines: list[str] = []

    def block(depth: int) -> None:
        for _ in range(draw(st.integers(1, 5))):
            indent = "    " * depth
            if depth < 6 and draw(st.booleans()):
                head = draw(st.sampled_from(BLOCKS))
                lines.append(indent + head)
                block(depth + 1)
                if head == "try:":
                    lines.extend([f"{indent}finally:", f"{indent}    pass"])
            else:
                lines.append(indent + draw(st.sampled_from(LINES)))

    block(1)
    return HEAD + "\n".join(lines) + "\n"


def read_all(data: bytes, path: str) -> list[Finding]:
    """The findings. A rule that raises is caught by the reader and told: here it fails the test."""
    reading = read_data(path, data, Project(), all_rules())
    assert reading.failures == ()
    return reading.findings


def read(text: str) -> None:
    """Read, and make every fix that is offered: neither may raise."""
    for finding in read_all(text.encode(errors="replace"), "fuzz.py"):
        assert 1 <= finding.at.line <= text.count("\n") + 2
        if finding.fix is not None:
            apply(text, finding.fix.edits)


@settings(relaxed, max_examples=100)
@given(training_code())
def test_training_code_in_any_order(text: str) -> None:
    read(text)


@relaxed
@given(hypothesmith.from_node())
def test_any_python_at_all(text: str) -> None:
    read("import torch\n" + text)


@relaxed
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for content in (data, b"import torch\n" + data):
        read_all(content, "fuzz.py")
        read_all(content, "fuzz.ipynb")


@relaxed
@given(st.text(max_size=80), st.integers(0, 2000))
def test_training_code_damaged_anywhere(rubbish: str, at: int) -> None:
    text = (
        HEAD
        + "    for x, y in loader:\n        loss = loss_fn(model(x), y)\n        loss.backward()\n        optimizer.step()\n"
    )
    read_all((text[:at] + rubbish + text[at:]).encode(errors="replace"), "fuzz.py")


def library_sample(count: int) -> list[Path]:
    files = sorted(p for p in STANDARD_LIBRARY.rglob("*.py") if "site-packages" not in p.parts)
    return random.Random(0).sample(files, count)


@pytest.mark.slow
def test_the_standard_library_as_training_code() -> None:
    """With `import torch` in front nothing is passed over, so every rule and the executor look at all of it."""
    for path in library_sample(150):
        data = path.read_bytes()
        nothing_to_find(str(path), data)
        read_all(
            b"import torch\n" + data
            if b"from __future__" not in data
            else data + b"\nimport torch\n",
            str(path),
        )

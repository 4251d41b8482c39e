"""The performance rules: what makes the device wait, now and then or always."""

from __future__ import annotations

import pytest

from fallline.rules import rule_by_code
from fallline.syntax import Project, Source
from traces import codes, trace


def found(code: str, text: str) -> set[str]:
    rule = rule_by_code(code)
    assert rule is not None
    return codes(rule, trace(text))


def reported(code: str, text: str) -> list[int]:
    rule = rule_by_code(code)
    assert rule is not None
    module = Project().add(Source("train.py", text))
    return [finding.at.line for finding in rule.check_syntax(module)]


STEP = "D Z F B S"
ITEM = "sync(what=item;device=cuda)"
PER_PARAMETER = "sync(what=item;device=cuda;per_parameter)"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL501", f"{STEP} {ITEM} " * 3),
        ("FL501", f"Z F B S {ITEM} " * 3),  # no loader in sight
        ("FL501", f"D {STEP[2:]} {ITEM} " * 2 + "E " + f"D F {ITEM} " * 2),
        ("FL504", f"D Z F B [{PER_PARAMETER}]*3 S " * 3),
        ("FL504", "D Z F B sync(per_parameter) S " * 2),  # a helper that knows no device
    ],
)
def test_reports(code: str, text: str) -> None:
    assert found(code, text) == {"sync"}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL501", f"{STEP} sync(what=item;device=cpu) " * 3),
        ("FL501", f"{STEP} sync(what=item) " * 3),  # not known
        ("FL501", f"{STEP} {ITEM} {STEP} {STEP} {STEP} {ITEM}"),  # now and then
        ("FL501", f"{STEP} " * 3 + f"D F {ITEM} " * 3),  # evaluation
        ("FL501", f"{STEP} {ITEM}"),
        ("FL501", f"{STEP} {PER_PARAMETER} " * 3),  # FL504 says it
        ("FL504", f"{STEP} {ITEM} " * 3),
        ("FL504", f"{STEP} sync(device=cpu;per_parameter) " * 3),
        ("FL504", f"{STEP} " * 3 + f"{PER_PARAMETER} " * 3),  # once, after training
        ("FL504", f"{STEP} {STEP} {PER_PARAMETER} {STEP} {STEP} {PER_PARAMETER} {STEP}"),
    ],
)
def test_silent(code: str, text: str) -> None:
    assert found(code, text) == set()


LOADER = """\
import torch
from torchvision import datasets
from torch.utils.data import DataLoader, Subset
data = {dataset}
loader = DataLoader({arguments})
"""


@pytest.mark.parametrize(
    ("dataset", "arguments", "lines"),
    [
        ("datasets.ImageFolder('x')", "data, 8", [5]),
        ("datasets.ImageFolder('x')", "data, batch_size=8, num_workers=0", [5]),
        ("Subset(datasets.ImageFolder('x'), range(9))", "data", [5]),
        ("datasets.ImageFolder('x')", "data, 8, False, None, None, 4", []),
        ("datasets.ImageFolder('x')", "data, num_workers=workers", []),
        ("datasets.FakeData()", "data", []),
        ("make()", "data", []),
    ],
)
def test_loader_in_process(dataset: str, arguments: str, lines: list[int]) -> None:
    assert reported("FL502", LOADER.format(dataset=dataset, arguments=arguments)) == lines


TIMED = """\
import time, torch
from torch import nn
model = nn.Linear(4, 4).to("cuda")
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize(
    ("work", "lines"),
    [
        ("y = model(x)", [6]),
        ("for _ in range(9): model(x).sum().backward()", [6]),
        ("y = model(x).to('cpu')", []),
        ("y = model(x).cpu()", []),
        ("y = model(x); torch.cuda.synchronize()", []),
        ("y = build_model(x)", []),
        ("run(model)", []),
        ("pass", []),
    ],
)
def test_timing(work: str, lines: list[int]) -> None:
    assert reported("FL503", TIMED.format(work=work)) == lines


def test_a_barrier_waits_for_the_device() -> None:
    timed = """\
import time
import torch

model = torch.nn.Linear(8, 8).cuda()
start = time.time()
y = model(x)
{}
print(time.time() - start)
"""
    assert reported("FL503", timed.format("y.sum().backward()")) == [8]
    assert reported("FL503", timed.format("torch.distributed.barrier()")) == []

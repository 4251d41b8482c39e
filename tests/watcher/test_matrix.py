"""Faults are reported, healthy runs are left alone. All of both here; every fault in every architecture in benchmarks/fault_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from watcher.matrix.architectures import ARCHITECTURES
from watcher.matrix.drive import watched
from watcher.matrix.faults import FAULTS, Fault
from watcher.matrix.healthy import HEALTHY


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_each() -> list[object]:
    """Each fault in one architecture, in turn."""
    chosen = []
    for number, fault in enumerate(FAULTS.values()):
        fitting = [a for name, a in ARCHITECTURES.items() if name not in fault.without]
        arch = fitting[number % len(fitting)]
        chosen.append(pytest.param(fault, arch.name, id=f"{fault.name}-{arch.name}"))
    return chosen


def test_there_are_enough_of_both() -> None:
    assert len(FAULTS) >= 30 and len(HEALTHY) >= 30 and len(ARCHITECTURES) >= 4


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("fault", "architecture"), one_each())
def test_a_fault_is_told(fault: Fault, architecture: str) -> None:
    seen = watched(lambda: fault.train(ARCHITECTURES[architecture]))
    assert seen.failure is None
    assert seen.codes & fault.codes, f"found {sorted(seen.codes)} instead of {sorted(fault.codes)}"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_left_alone(name: str) -> None:
    seen = watched(HEALTHY[name])
    assert seen.failure is None
    assert [(f.code, f.message) for f in seen.serious] == []

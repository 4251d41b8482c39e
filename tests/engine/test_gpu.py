"""The kernel on a real device. `make test-gpu` runs these where there is one; elsewhere they are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from engine_gpu_checks import CHECKS  # noqa: E402  # the benchmarks are scripts, not a package

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_gpu(check):
    check()

"""Which mistake the numbers of one update are explained by, also where the format is so coarse that weights say little."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fallline.instruments.equal.explain import accumulated  # noqa: E402
from fallline.instruments.equal.record import Backward, Record  # noqa: E402


def update(factors: list[float]) -> tuple[Record, dict[str, torch.Tensor]]:
    """An update that counts micro-batches with these factors, and the mean that it should be."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(500, generator=generator)
    parts = [{"w": common + 0.1 * torch.randn(500, generator=generator)} for _ in factors]
    made = [Backward(part, 1.0, [], "train.py", 7, 0, 8, 1) for part in parts]
    reached = {"w": sum(f * part["w"] for f, part in zip(factors, parts, strict=True))}
    record = Record(backwards=made, unclipped=reached, reached=reached, step_path="train.py", step_line=9)  # fmt: skip
    return record, {"w": sum(part["w"] for part in parts) / len(parts)}


@pytest.mark.parametrize("tolerance", [1e-5, 1e-3, 0.1])
def test_a_loss_that_is_not_divided(tolerance: float) -> None:
    record, whole = update([1.0, 1.0, 1.0, 1.0])
    told = accumulated("accumulation", record, whole, tolerance)
    assert told.code == "FL104" and told.line == 7
    assert "4.00x" in told.message and "not divided by 4" in told.message


def test_a_factor_is_seen_where_an_engine_hides_what_each_backward_adds() -> None:
    record, whole = update([0.25, 0.25, 0.25, 0.25])
    for backward in record.backwards:
        backward.added = {}
    found = accumulated("accumulation", record, {"w": 4 * whole["w"]}, 1e-5)
    assert (found.code, found.ratio) == ("FL129", pytest.approx(0.25))


@pytest.mark.parametrize("tolerance", [1e-5, 1e-3])
def test_micro_batches_that_are_lost(tolerance: float) -> None:
    record, whole = update([0.0, 0.0, 0.0, 1.0])
    told = accumulated("accumulation", record, whole, tolerance)
    assert told.code == "FL105" and "only micro-batch 4 of 4 counts" in told.message

"""Per-parameter numbers: right, affordable, and silent about what cannot be measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fallline.runs.samples import FROZEN, WITH, WITHOUT, ParameterInfo, Sample
from fallline.runs.update import UpdateRow
from fallline.watcher import numbers
from fallline.watcher.memory import LiveGraphs, live_bytes
from fallline.watcher.numbers import Numbers, describe_parameters, fingerprint_due, gradient_sample
from fallline.watcher.recorder import _resolve


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(*parameters: torch.Tensor, **options: object) -> Numbers:
    named = [(ParameterInfo(f"p{i}", shape=tuple(p.shape)), p) for i, p in enumerate(parameters)]
    return Numbers(named, **options)  # type: ignore[arg-type]


def sampled(
    watched: Numbers, step: object = lambda: None, index: int = 0, **facts: object
) -> UpdateRow:
    row = UpdateRow(index)
    watched.before_step(index, **facts)  # type: ignore[arg-type]
    step()  # type: ignore[operator]
    watched.after_step(row)
    _resolve(row)
    assert watched.failure == ""
    return row


def test_the_numbers_are_right() -> None:
    torch.manual_seed(0)
    weight, bias = nn.Parameter(torch.randn(30, 20)), nn.Parameter(torch.randn(7))
    weight.grad, bias.grad = torch.randn(30, 20), torch.tensor([0.0, 0, 3, -4, 0, 0, 0])
    optimizer = torch.optim.SGD([weight, bias], lr=0.5)
    before = weight.detach().clone()
    row = sampled(of(weight, bias), optimizer.step)
    sample = row.sample
    assert sample is not None
    assert sample.column("norm") == pytest.approx([weight.grad.norm().item(), 5.0])
    assert sample.column("mean")[1] == pytest.approx(-1 / 7)
    assert sample.column("std") == pytest.approx(
        [g.std(correction=0).item() for g in (weight.grad, bias.grad)]
    )
    assert sample.column("largest") == pytest.approx([weight.grad.abs().max().item(), 4.0])
    assert sample.column("zeros") == pytest.approx([0.0, 5 / 7])
    assert sample.column("nonfinite") == [0.0, 0.0]
    assert sample.column("weight")[0] == pytest.approx(before.norm().item(), rel=1e-4)
    assert sample.column("ratio")[0] == pytest.approx(
        ((weight - before).norm() / before.norm()).item(), rel=1e-4
    )
    assert sample.total_norm() == pytest.approx(math.hypot(weight.grad.norm().item(), 5.0))


def test_what_is_not_finite_is_counted() -> None:
    gradient = torch.ones(10)
    gradient[2], gradient[5] = math.nan, math.inf
    huge = torch.full((4,), 1e30)  # its norm overflows, it does not
    found = gradient_sample([gradient, huge])
    assert found[:, 5].tolist() == [2.0, 0.0]


def test_frozen_unused_sparse_complex_and_empty_parameters() -> None:
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    unused = nn.Parameter(torch.ones(3))
    table = nn.Embedding(50, 4, sparse=True)
    table(torch.tensor([1, 1, 7])).sum().backward()
    wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    wave.abs().sum().backward()
    empty = nn.Parameter(torch.empty(0, 3))
    empty.grad = torch.empty(0, 3)
    half = nn.Parameter(torch.ones(4, dtype=torch.float16))
    half.grad = torch.full((4,), 300.0, dtype=torch.float16)
    turned = nn.Parameter(torch.ones(6, 4).t())
    turned.grad = torch.ones(4, 6)
    meta = nn.Parameter(torch.ones(3, device="meta"))
    watched = of(frozen, unused, table.weight, wave, empty, half, turned, meta)
    sample = sampled(watched).sample
    assert sample is not None
    assert sample.column("state") == [FROZEN, WITHOUT, WITH, WITH, WITH, WITH, WITH]
    norms = sample.column("norm")
    assert math.isnan(norms[0]) and math.isnan(norms[1])
    assert norms[2:] == pytest.approx(
        [math.sqrt(4 * 4 + 4), math.sqrt(3), 0.0, 600.0, math.sqrt(24)]
    )


def test_the_loss_scale_is_divided_out_and_underflow_is_seen() -> None:
    weight = nn.Parameter(torch.ones(100))
    weight.grad = torch.full((100,), 1e-8)
    weight.grad[:30] = 0
    seen = sampled(of(weight, half=True), scale=1.0).sample
    assert (
        seen is not None
        and seen.column("tiny") == [1.0]
        and seen.column("zeros") == pytest.approx([0.3])
    )
    lifted = sampled(of(weight, half=True), scale=65536.0).sample
    assert lifted is not None and lifted.column("tiny") == [0.0]
    still_scaled = sampled(of(weight), scale=4.0, scaled=True).sample
    assert still_scaled is not None
    assert still_scaled.column("norm") == pytest.approx([1e-8 * math.sqrt(70) / 4])


def test_the_signal_is_the_cosine_with_the_sample_before() -> None:
    weight = nn.Parameter(torch.ones(50))
    watched = of(weight)
    signals = []
    for index, gradient in enumerate((torch.ones(50), torch.ones(50), -torch.ones(50))):
        weight.grad = gradient
        sample = sampled(watched, index=index).sample
        assert isinstance(sample, Sample)
        signals.append(sample.signal)
    assert math.isnan(signals[0]) and signals[1:] == pytest.approx([1.0, -1.0])


def test_samples_become_rarer_when_they_are_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(numbers.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(numbers.time, "thread_time", lambda: clock[0])
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    watched = of(weight, budget=0.01)
    real = watched._measure

    def slow(*args: object) -> object:
        clock[0] += 0.01
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(watched, "_measure", slow)
    taken = 0
    for index in range(2_000):
        clock[0] += (
            0.1  # a step of 100 ms: 1 ms is the budget, 0.25 are for taps, 0.3 of the rest for samples
        )
        taken += sampled(watched, index=index).sample is not None
    assert 42 <= taken <= 55
    assert watched.spent <= 0.003 * clock[0]


def test_a_budget_of_nothing_measures_nothing() -> None:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    assert sampled(of(weight, budget=0.0)).sample is None


def test_a_tensor_that_cannot_be_measured_ends_the_measuring_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(gradients: object) -> None:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(numbers, "gradient_sample", broken)
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    watched = of(weight)
    row = UpdateRow(0)
    watched.before_step(0)
    watched.after_step(row)
    assert row.sample is None and "no such kernel" in watched.failure


def test_fingerprints_are_taken_at_the_same_updates_everywhere() -> None:
    early = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768]
    assert [i for i in range(5_000) if fingerprint_due(i)] == [*early, 1024, 2048, 3072, 4096]


def test_fingerprints_tell_parameters_apart() -> None:
    torch.manual_seed(0)
    model = nn.Linear(400, 300)
    same, other = nn.Linear(400, 300), nn.Linear(400, 300)
    same.load_state_dict(model.state_dict())
    rows = [sampled(of(*m.parameters(), fingerprints=True)) for m in (model, same, other)]
    assert rows[0].fingerprint == rows[1].fingerprint != rows[2].fingerprint
    assert len(rows[0].fingerprint) == 4


def test_parameters_are_known_by_name_and_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    found = list(describe_parameters(model).values())
    assert [(p.name, p.module, p.shape) for p in found][:3] == [
        ("0.weight", "Linear", (3, 2)),
        ("0.bias", "Linear", (3,)),
        ("1.weight", "LayerNorm", (3,)),
    ]


def test_graphs_that_stay_alive_are_counted() -> None:
    graphs, layer, kept = LiveGraphs(), nn.Linear(4, 4), []
    for _ in range(5):
        loss = layer(torch.ones(2, 4)).sum()
        graphs.note(loss)
        loss.backward()
        kept.append(loss)
    assert graphs.alive == 5
    total = sum(kept)
    kept.clear()
    del loss
    assert graphs.alive == 5, "a running sum holds every graph"
    del total
    assert graphs.alive == 0
    graphs.note(torch.ones(1))
    assert (live_bytes() or 1) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_numbers_are_the_same_and_nobody_waits() -> None:
    torch.manual_seed(0)
    shapes = [(300, 200), (7,), (64, 3, 3), (1,), (5000,)]
    parameters = [nn.Parameter(torch.randn(s)) for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    parameters[0].grad.view(-1)[:600] = 0  # type: ignore[union-attr]
    parameters[2].grad.view(-1)[5] = math.inf  # type: ignore[union-attr]
    there = [nn.Parameter(p.detach().cuda()) for p in parameters]
    for p, q in zip(parameters, there, strict=True):
        q.grad = p.grad.cuda()  # type: ignore[union-attr]
    here = sampled(of(*parameters, fingerprints=True))
    of(*there).before_step(0)  # compiles what has to be compiled
    watched = of(*there, fingerprints=True)
    row = UpdateRow(0, loss=torch.ones((), device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        watched.before_step(0)
        watched.after_step(row)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    _resolve(row)
    assert watched.failure == "" and row.sample is not None and here.sample is not None
    for column in ("norm", "mean", "largest", "zeros", "nonfinite", "weight", "state"):
        assert row.sample.column(column) == pytest.approx(
            here.sample.column(column), rel=1e-4, abs=1e-6, nan_ok=True
        ), column
    assert row.fingerprint == pytest.approx(here.fingerprint, rel=1e-6)


def test_a_fingerprint_is_of_one_update() -> None:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    watched = of(weight, fingerprints=True)
    rows = []
    for index in range(6):
        watched.before_step(index)
        rows.append(UpdateRow(index))
        watched.after_step(rows[-1])
    assert [r.index for r in rows if r.fingerprint is not None] == [0, 1, 2, 3, 4]

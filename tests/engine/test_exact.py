"""The engine's update is the big batch's: any model, window, ragged batches, weights, clipping, precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fallline

torch.set_num_threads(1)


def mlp(width: int, depth: int, dtype: torch.dtype) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(3, width)]
    for _ in range(depth):
        layers += [nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 2)).to(dtype)


def twins(
    width: int, depth: int, dtype: torch.dtype, seed: int
) -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(seed)
    first, second = mlp(width, depth, dtype), mlp(width, depth, dtype)
    second.load_state_dict(first.state_dict())
    return first, second


def distance(first: nn.Module, second: nn.Module) -> float:
    return max(
        float((a - b).detach().abs().max())
        for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def ragged(sizes: list[int], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(n, 3, dtype=dtype), torch.randn(n, 2, dtype=dtype)) for n in sizes]


def windows(batches: list, accumulate: int) -> list[list]:
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


scenario = {
    "width": st.integers(1, 6),
    "depth": st.integers(0, 2),
    "accumulate": st.integers(1, 5),
    "sizes": st.lists(st.integers(1, 6), min_size=1, max_size=9),
    "clip": st.sampled_from([None, 1e-3, 0.1, 1e6]),
    "seed": st.integers(0, 10_000),
}


@settings(max_examples=40, deadline=None)
@given(**scenario, wide=st.booleans(), name=st.sampled_from(["SGD", "AdamW"]))
def test_weighted_windows_are_the_big_batch(
    width, depth, accumulate, sizes, clip, seed, wide, name
):
    dtype, tolerance = (torch.float64, 1e-12) if wide else (torch.float32, 1e-6)
    mine, reference = twins(width, depth, dtype, seed)
    batches = ragged(sizes, dtype)
    optimizer = getattr(torch.optim, name)(
        mine.parameters(), lr=0.01, **({"eps": 1e-3} if name == "AdamW" else {})
    )
    stepper = fallline.Stepper(mine, optimizer, accumulate=accumulate, clip_norm=clip)
    for x, y in stepper.over(batches):
        with stepper.micro_batch() as micro:
            micro.backward((mine(x) - y).square().sum(), weight=y.numel())

    optimizer = getattr(torch.optim, name)(
        reference.parameters(), lr=0.01, **({"eps": 1e-3} if name == "AdamW" else {})
    )
    for window in windows(batches, accumulate):
        optimizer.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        (reference(x) - y).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(reference.parameters(), clip)
        optimizer.step()
    assert distance(mine, reference) <= tolerance
    assert stepper.updates == len(windows(batches, accumulate))


@settings(max_examples=20, deadline=None)
@given(**scenario)
def test_counted_windows_are_the_mean_of_their_losses(width, depth, accumulate, sizes, clip, seed):
    mine, reference = twins(width, depth, torch.float64, seed)
    # Equal sizes: then the mean of means is the big batch too
    batches = ragged([3] * len(sizes), torch.float64)
    stepper = fallline.Stepper(
        mine, torch.optim.SGD(mine.parameters(), lr=0.1), accumulate=accumulate, clip_norm=clip
    )
    for x, y in stepper.over(batches):
        with stepper.micro_batch() as micro:
            micro.backward(nn.functional.mse_loss(mine(x), y))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for window in windows(batches, accumulate):
        optimizer.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        nn.functional.mse_loss(reference(x), y).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(reference.parameters(), clip)
        optimizer.step()
    assert distance(mine, reference) <= 1e-12


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 2e-2), ("fp16", 2e-3)]
)
def test_precisions(precision, tolerance, fused):
    """In half precision the forward pass rounds; the update is still that of one big batch in the same precision."""
    mine, reference = twins(8, 1, torch.float32, 0)
    batches = ragged([5, 3, 1, 4, 2], torch.float32)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, fused=fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    stepper = fallline.Stepper(
        mine, optimizer, accumulate=3, clip_norm=0.5, precision=precision, scheduler=scheduler
    )
    for x, y in stepper.over(batches):
        with stepper.micro_batch() as micro:
            micro.backward((mine(x) - y).square().sum(), weight=y.numel())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for window in windows(batches, 3):
        optimizer.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        (reference(x) - y).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
    assert distance(mine, reference) <= tolerance
    assert scheduler.last_epoch == stepper.updates == 2
    if precision == "fp16":
        assert stepper.last.scale == 65536.0


def test_a_loop_without_over():
    mine, reference = twins(4, 1, torch.float64, 3)
    batches = ragged([2, 3, 4, 1, 5], torch.float64)
    stepper = fallline.Stepper(mine, torch.optim.SGD(mine.parameters(), lr=0.1), accumulate=2)
    seen = []
    for i, (x, y) in enumerate(batches):
        with stepper.micro_batch(last=i == 4) as micro:
            micro.backward((mine(x) - y).square().sum(), weight=y.numel())
        seen.append(stepper.updated)
    assert seen == [False, True, False, True, True]
    other = fallline.Stepper(
        reference, torch.optim.SGD(reference.parameters(), lr=0.1), accumulate=2
    )
    for x, y in batches:
        with other.micro_batch() as micro:
            micro.backward((reference(x) - y).square().sum(), weight=y.numel())
    other.step()  # the remainder, by hand
    assert distance(mine, reference) == 0.0


def test_several_optimizers_step_together_and_each_parameter_is_clipped_once():
    mine, reference = twins(4, 1, torch.float64, 5)
    x, y = ragged([8], torch.float64)[0]
    parts = list(mine.parameters())
    optimizers = [torch.optim.SGD(parts[:2], lr=0.1), torch.optim.SGD(parts[2:], lr=0.1)]
    stepper = fallline.Stepper(mine, optimizers, clip_norm=0.01)
    with stepper.micro_batch() as micro:
        micro.backward(nn.functional.mse_loss(mine(x), y))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    nn.functional.mse_loss(reference(x), y).backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    optimizer.step()
    assert distance(mine, reference) <= 1e-12


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend):
    mine, reference = twins(4, 1, torch.float64, 7)
    compiled = torch.compile(mine, backend=backend)
    batches = ragged([2, 2, 2], torch.float64)
    for model, called in ((mine, compiled), (reference, reference)):
        stepper = fallline.Stepper(
            called, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2, clip_norm=0.1
        )
        for x, y in stepper.over(batches):
            with stepper.micro_batch() as micro:
                micro.backward(nn.functional.mse_loss(called(x), y))
    assert distance(mine, reference) <= 1e-12


def test_activation_checkpointing_changes_nothing():
    from torch.utils.checkpoint import checkpoint

    mine, reference = twins(6, 2, torch.float32, 9)
    batches = ragged([4, 4, 4], torch.float32)
    for model, forward in (
        (mine, lambda x: checkpoint(mine, x, use_reentrant=False)),
        (reference, reference),
    ):
        stepper = fallline.Stepper(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            accumulate=2,
            clip_norm=0.1,
            precision="bf16",
        )
        for x, y in stepper.over(batches):
            with stepper.micro_batch() as micro:
                micro.backward(nn.functional.mse_loss(forward(x).float(), y))
    assert distance(mine, reference) == 0.0


def test_clip_per_group_layer_and_value():
    x, y = torch.randn(16, 3), 10 * torch.randn(16, 2)
    for per in ("group", "layer", "value"):
        mine, reference = twins(4, 1, torch.float32, 11)
        groups = [{"params": list(mine[0].parameters())}, {"params": list(mine[2:].parameters())}]
        how = {"clip_value": 0.01} if per == "value" else {"clip_norm": 0.05, "clip_per": per}
        stepper = fallline.Stepper(mine, torch.optim.SGD(groups, lr=1.0), **how)
        with stepper.micro_batch() as micro:
            micro.backward(nn.functional.mse_loss(mine(x), y))
        nn.functional.mse_loss(reference(x), y).backward()
        if per == "value":
            torch.nn.utils.clip_grad_value_(reference.parameters(), 0.01)
        else:
            parts = (
                [reference[0], reference[2:]]
                if per == "group"
                else [m for m in reference if isinstance(m, nn.Linear)]
            )
            for part in parts:
                torch.nn.utils.clip_grad_norm_(part.parameters(), 0.05)
            assert len(stepper.last.norm) == len(parts) and stepper.last.clipped
        torch.optim.SGD(reference.parameters(), lr=1.0).step()
        assert distance(mine, reference) <= 1e-6


def test_the_scalar_is_not_applied_when_it_is_one(monkeypatch):
    model = nn.Linear(3, 2)
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=1e6)

    def never(*_):
        raise AssertionError("the gradients were written")

    monkeypatch.setattr(torch, "_foreach_mul_", never)
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.randn(4, 3)).sum())
    assert stepper.last.coefficient == 1.0 and not stepper.last.clipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", [2, 12])  # few parameters, and more
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_loop_that_changes_over_keeps_its_bits(accumulate, layers, dtype):
    """Where the division is exact (a power of two), clipping rounds as torch's does."""

    def run(by_hand):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))).to(dtype)
        biases = [p for p in model.parameters() if p.dim() == 1]
        weights = [p for p in model.parameters() if p.dim() == 2]
        optimizer = torch.optim.AdamW([{"params": biases}, {"params": weights}], lr=0.01)
        stepper = None
        if not by_hand:
            stepper = fallline.Stepper(model, optimizer, accumulate=accumulate, clip_norm=0.05)
        for i in range(8 * accumulate):
            inputs = torch.randn(4, 8, dtype=dtype)
            if stepper is not None:
                with stepper.micro_batch() as micro:
                    micro.backward(model(inputs).square().mean())
                continue
            (model(inputs).square().mean() / accumulate).backward()
            if (i + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())

    assert all(map(torch.equal, run(True), run(False)))

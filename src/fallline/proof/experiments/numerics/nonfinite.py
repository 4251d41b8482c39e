"""Where NaN and inf come from, and which checks see them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

NAN, INF = float("nan"), float("inf")


@experiment(
    "empty-masks",
    claim="A masked mean is NaN where the mask is empty or a masked slot holds inf; with clamp_min(1) and torch.where it is not.",
    taught="(loss * mask).sum() / mask.sum() is right.",
)
def empty_masks() -> Measured:
    def naive(losses: Tensor, mask: Tensor) -> float:
        return float((losses * mask).sum() / mask.sum())

    def safe(losses: Tensor, mask: Tensor) -> float:
        kept = torch.where(mask.bool(), losses, 0.0)
        return float(kept.sum() / mask.sum().clamp_min(1))

    empty = (torch.ones(3), torch.zeros(3))
    hole = (torch.tensor([1.0, 2.0, INF]), torch.tensor([1.0, 1.0, 0.0]))
    labels = torch.full((4,), -100)
    per_label = F.cross_entropy(torch.zeros(4, 5), labels, reduction="none")
    found = {
        "mask.sum() below": (
            naive(*empty),
            naive(*hole),
            F.cross_entropy(torch.zeros(4, 5), labels).item(),
        ),
        "torch.where and clamp_min(1)": (
            safe(*empty),
            safe(*hole),
            safe(per_label, labels != -100),
        ),
    }
    # How often that happens by chance: 20% of labels known, batches of 16.
    torch.manual_seed(0)
    all_ignored = 100 * (torch.rand(100_000, 16) > 0.2).all(dim=1).float().mean().item()
    wrong, right = found.values()
    return Measured(
        sides={
            name: {
                "empty mask": f"{a:g}",
                "inf behind the mask": f"{b:g}",
                "cross_entropy, all labels ignored": f"{c:g}",
            }
            for name, (a, b, c) in found.items()
        },
        conclusion=f"empty mask {wrong[0]:g} and {right[0]:g}, inf behind the mask {wrong[1]:g} and {right[1]:g}; all labels ignored {wrong[2]:g} and {right[2]:g}, which {all_ignored:.1f}% of batches of 16 with a fifth labelled are",
        holds={
            "the naive form is NaN each time": all(value != value for value in wrong),
            "the safe form is right each time": right == (0, 1.5, 0),
            "it happens by chance": 2 < all_ignored < 4,
        },
    )


@experiment(
    "nan-loss-has-many-sources",
    claim="A NaN loss need not come from the loss function: a parameter, an input, a target, or divergence give the same.",
    taught="A NaN loss before backward means the loss function is at fault.",
)
def nan_loss_has_many_sources() -> Measured:
    def loss(nan_in: str) -> float:
        torch.manual_seed(0)
        model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
        with torch.no_grad():
            for name, tensor in (("a parameter", model.weight), ("an input", x), ("a target", y)):
                if name == nan_in:
                    tensor[0, 0] = NAN
        return F.mse_loss(model(x), y).item()

    losses = {f"NaN in {where}": loss(where) for where in ("a parameter", "an input", "a target")}
    healthy = loss("nothing")
    first_nan, end = _divergence()
    return Measured(
        sides={
            "nothing wrong": {"loss": f"{healthy:.2f}"},
            **{name: {"loss": f"{value:g}"} for name, value in losses.items()},
            "learning rate far too high": {"loss": f"{end:g}"},
        },
        conclusion=f"one NaN in a parameter, an input or a target makes plain MSE NaN; a run that diverges has a NaN loss at update {first_nan}, from finite weights and data at its start",
        holds={
            "each source gives NaN": all(value != value for value in losses.values()),
            "without one the loss is finite": healthy < INF,
            "a run that diverges comes to NaN, but not at once": first_nan > 0 and end != end,
        },
    )


def _divergence() -> tuple[int, float]:
    """A run that diverges: the first update with a NaN loss, and that loss."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    for update in range(100):
        loss = F.mse_loss(model(x), y)
        if loss.isnan():
            return update, loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError("the run did not diverge")


@experiment(
    "isfinite-not-isnan",
    claim="isnan(loss) misses an infinite loss whose gradient is already infinite; isfinite sees it.",
    taught="If torch.isnan(loss) is False, the loss is valid.",
)
def isfinite_not_isnan() -> Measured:
    p = torch.zeros(1, requires_grad=True)
    loss = -p.log().sum()
    loss.backward()
    assert p.grad is not None
    nan = torch.tensor(NAN)
    return Measured(
        sides={
            "isnan": {"sees -log(0)": bool(loss.isnan()), "sees a NaN": bool(nan.isnan())},
            "not isfinite": {
                "sees -log(0)": not bool(loss.isfinite()),
                "sees a NaN": not bool(nan.isfinite()),
            },
        },
        conclusion=f"-log(0) is {loss.item():g} with a gradient of {p.grad.item():g}: isnan says nothing, isfinite does",
        holds={
            "isnan is silent": not loss.isnan(),
            "isfinite is not": not loss.isfinite(),
            "the gradient is infinite": bool(p.grad.isinf()),
        },
    )


@experiment(
    "finite-loss-nan-gradient",
    claim="Loss functions can have a finite loss and a NaN gradient; anomaly mode names the operation.",
    taught="If the loss is not NaN, the problem is clipping or unscaling.",
)
def finite_loss_nan_gradient() -> Measured:
    cases: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
        "mean(sqrt(x²)) at x = 0": (lambda x: (x**2).sqrt().mean(), [0.0, 1.0]),
        "where(a > 0, log a, 0) at a = 0": (
            lambda a: torch.where(a > 0, a.log(), 0.0).sum(),
            [0.0],
        ),
        "x / max(norm(x), 1) at x = 0": (
            lambda x: (x / (x * x).sum().sqrt().clamp_min(1)).sum(),
            [0.0, 0.0],
        ),
    }
    found = {}
    for name, (f, at) in cases.items():
        x = torch.tensor(at, requires_grad=True)
        loss = f(x)
        loss.backward()
        assert x.grad is not None
        found[name] = (loss.item(), bool(x.grad.isnan().any()))
    named = _named_by_anomaly_mode()
    return Measured(
        sides={name: {"loss": loss, "gradient is NaN": nan} for name, (loss, nan) in found.items()},
        conclusion=f"{len(found)} finite losses ({', '.join(f'{loss:g}' for loss, _ in found.values())}) with NaN gradients; detect_anomaly names {named}",
        holds={
            "losses are finite": all(abs(loss) < INF for loss, _ in found.values()),
            "gradients are NaN": all(nan for _, nan in found.values()),
            "anomaly mode names the operation": named == "PowBackward0",
        },
    )


def _named_by_anomaly_mode() -> str:
    x = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode announces itself
        try:
            with torch.autograd.detect_anomaly():
                (x**2).sqrt().sum().backward()
        except RuntimeError as error:
            return str(error).split("'")[1]
    return "nothing"


@experiment(
    "late-nan-from-data",
    claim="A NaN row is met in the first epoch, but a batch in which every label is ignored makes NaN whenever it is first drawn, mostly later: late NaN can come from data.",
    taught="NaN in data shows at once; a late NaN is exploding gradients.",
)
def late_nan_from_data() -> Measured:
    runs = 100
    hits, empties = [], []  # in which epoch, counted from 1
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        # 30% of 1008 labels are known, and row 900 is NaN; batches of 16, shuffled anew every epoch.
        known = torch.rand(1008, generator=generator) < 0.3
        hit = empty = 0
        for epoch in range(1, 201):
            rows = torch.randperm(1008, generator=generator).view(63, 16)
            hit = hit or epoch * int((rows == 900).any())
            empty = epoch * int((~known[rows].any(1)).any())
            if empty:
                break
        hits.append(hit)
        empties.append(empty)
    late = sum(epoch > 1 for epoch in empties)
    loss = F.cross_entropy(torch.zeros(16, 2), torch.full((16,), -100)).item()
    labelled = F.cross_entropy(torch.zeros(16, 2), torch.tensor([1] + [-100] * 15)).item()
    return Measured(
        sides={
            "one NaN row in 1008": {"latest epoch that meets it first": max(hits)},
            "30% labelled, batches of 16": {
                "runs of 100 whose first batch without a label comes after epoch 1": late,
                "latest epoch that meets one first": max(empties),
                "loss of such a batch": f"{loss:g}",
                "loss of a batch with one label": labelled,
            },
        },
        conclusion=f"in {runs} runs a NaN row is always met in epoch {max(hits)}; the first batch without any label, whose loss is {loss:g}, comes after the first epoch in {late} of them, at the latest in epoch {max(empties)}",
        holds={
            "a NaN row shows in the first epoch": set(hits) == {1},
            "a batch without a label has a NaN loss": loss != loss and labelled == labelled,
            "it comes after the first epoch in most runs": late > runs / 2,
            "and in some after the tenth": max(empties) > 10 and min(empties) > 0,
        },
    )

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
    claim="A masked mean is NaN where the mask is empty or a masked slot holds inf; clamp_min(1) and torch.where are not.",
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
    ignored = F.cross_entropy(torch.randn(4, 5), torch.full((4,), -100)).item()
    # How often that happens by chance: 20% of labels known, batches of 16.
    torch.manual_seed(0)
    all_ignored = 100 * (torch.rand(100_000, 16) > 0.2).all(dim=1).float().mean().item()
    return Measured(
        sides={
            "mask.sum() below": {
                "empty mask": f"{naive(*empty):g}",
                "inf behind the mask": f"{naive(*hole):g}",
            },
            "torch.where and clamp_min(1)": {
                "empty mask": f"{safe(*empty):g}",
                "inf behind the mask": f"{safe(*hole):g}",
            },
            "cross_entropy, every label ignored": {
                "loss": f"{ignored:g}",
                "batches of 16 with 20% labelled, percent": all_ignored,
            },
        },
        conclusion=f"empty mask {naive(*empty):g} and {safe(*empty):g}, inf behind the mask {naive(*hole):g} and {safe(*hole):g}; cross_entropy with all labels ignored {ignored:g}, which {all_ignored:.1f}% of batches of 16 with a fifth labelled are",
        holds={
            "the naive form is NaN both times": naive(*empty) != naive(*empty)
            and naive(*hole) != naive(*hole),
            "the safe form is right both times": safe(*empty) == 0 and safe(*hole) == 1.5,
            "cross_entropy over nothing is NaN": ignored != ignored,
            "which happens by chance": 2 < all_ignored < 4,
        },
    )


@experiment(
    "nan-loss-has-many-sources",
    claim="A NaN loss need not come from the loss function: a parameter, an input, a target, or divergence give the same.",
    taught="A NaN loss before backward means the loss function is at fault.",
)
def nan_loss_has_many_sources() -> Measured:
    def loss(*, where: str = "") -> float:
        torch.manual_seed(0)
        model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
        with torch.no_grad():
            {"a parameter": model.weight, "an input": x, "a target": y}.get(
                where, torch.empty(1, 1)
            )[0, 0] = NAN
        return F.mse_loss(model(x), y).item()

    sources = {where: loss(where=where) for where in ("a parameter", "an input", "a target")}
    first_loss, first_weight, first_nan = _divergence()
    return Measured(
        sides={
            "plain MSE": {f"one NaN in {where}": f"{value:g}" for where, value in sources.items()}
            | {"nothing wrong": f"{loss():.3f}"},
            "learning rate far too high": {
                "first update with a loss of inf": first_loss,
                "first update with a weight that is not finite": first_weight,
                "first update with a loss of NaN": first_nan,
            },
        },
        conclusion=f"one NaN in a parameter, an input or a target makes plain MSE NaN; a diverging run has broken weights at update {first_weight} and a NaN loss at {first_nan}",
        holds={
            "each source gives NaN": all(value != value for value in sources.values()),
            "weights break before the loss is NaN": first_weight < first_nan,
        },
    )


def _divergence() -> tuple[int, int, int]:
    """A run that diverges: the updates at which loss is inf, a weight not finite, loss NaN for the first time."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    seen: dict[str, int] = {}
    for update in range(20):
        loss = F.mse_loss(model(x), y)
        if loss.isinf():
            seen.setdefault("inf", update)
        if loss.isnan():
            seen.setdefault("nan", update)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not model.weight.isfinite().all():
            seen.setdefault("weight", update)
    return seen["inf"], seen["weight"], seen["nan"]


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
    return Measured(
        sides={
            "isnan": {"sees it": bool(loss.isnan())},
            "isfinite": {"sees it": not bool(loss.isfinite())},
            "the loss": {"value": f"{loss.item():g}", "gradient": f"{p.grad.item():g}"},
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
        sides={name: {"loss": loss, "gradient is NaN": nan} for name, (loss, nan) in found.items()}
        | {"detect_anomaly": {"names": named}},
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
    claim="A NaN row is met in the first epoch, but an all-ignored batch makes NaN at any time: late NaN can come from data.",
    taught="NaN in data shows at once; a late NaN is exploding gradients.",
)
def late_nan_from_data() -> Measured:
    torch.manual_seed(0)
    row = 900  # any of the thousand
    epoch = torch.randperm(1000).split(32)
    hit = next(i for i, rows in enumerate(epoch) if row in rows)
    # 30% of labels known, batches of 16, shuffled anew every epoch: when is a batch without any label drawn?
    known = torch.rand(1000) < 0.3
    first = next(
        update
        for update, rows in enumerate(
            rows for _ in range(200) for rows in torch.randperm(1000).split(16)
        )
        if F.cross_entropy(torch.zeros(len(rows), 2), torch.where(known[rows], 1, -100)).isnan()
    )
    return Measured(
        sides={
            "one NaN row in 1000": {"first met at batch": hit, "batches per epoch": len(epoch)},
            "30% labelled, batches of 16": {
                "first NaN at batch": first,
                "epochs before it": first // 63,
            },
        },
        conclusion=f"the NaN row is met at batch {hit} of {len(epoch)}; the first batch without any label comes at update {first}, in epoch {first // 63 + 1}",
        holds={
            "a NaN row shows in the first epoch": hit < len(epoch),
            "an empty batch comes later": first >= 63,
        },
    )

"""What clipping does to a gradient: its direction, its length, and what a NaN or an inf in it becomes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import cosine, flat


@experiment(
    "norm-clipping-keeps-direction",
    claim="Norm clipping returns the norm before clipping, leaves max_norm, and keeps the direction.",
)
def norm_clipping_keeps_direction() -> Measured:
    torch.manual_seed(0)
    parameters = _parameters(torch.randn(100) * 3, torch.randn(20))
    before = _flat(parameters)
    returned = float(clip_grad_norm_(parameters, 1.0))
    after = _flat(parameters)
    direction = cosine(before, after)
    return Measured(
        sides={
            "before": {"norm": float(before.norm()), "cosine to the gradient": 1.0},
            "clipped at 1": {"norm": float(after.norm()), "cosine to the gradient": direction},
        },
        conclusion=f"a norm of {float(before.norm()):.1f} becomes {float(after.norm()):.3f}, cosine {direction:.6f}; the call returned {returned:.1f}",
        holds={
            "the returned norm is the one before": abs(returned / float(before.norm()) - 1) < 1e-5,
            "the norm left is max_norm": abs(float(after.norm()) - 1) < 1e-5,
            "the direction is kept": direction > 1 - 1e-9,
        },
    )


@experiment(
    "clip-coefficient-epsilon",
    claim="The clip coefficient is max_norm / (norm + 1e-6): a norm just under max_norm is changed, and a tiny max_norm overshoots by orders of magnitude.",
    taught="Nothing changes where the norm is at most max_norm; what is left lies in the unit ball.",
)
def clip_coefficient_epsilon() -> Measured:
    def left(norm: float, max_norm: float) -> float:
        parameters = _parameters(torch.tensor([norm], dtype=torch.float64))
        clip_grad_norm_(parameters, max_norm)
        return float(_flat(parameters).norm())

    close, tiny, wide = left(0.9999995, 1.0), left(2e-9, 1e-9), left(30.0, 5.0)
    return Measured(
        sides={
            "norm 30, max_norm 5": {"norm left": wide, "norm left / max_norm": wide / 5},
            "norm 0.9999995, max_norm 1": {"norm left": close, "norm left / max_norm": close},
            "norm 2e-9, max_norm 1e-9": {"norm left": tiny, "norm left / max_norm": tiny / 1e-9},
        },
        conclusion=f"max_norm 1e-9 leaves {tiny:.0e} of a norm of 2e-9, {1e-9 / tiny:.0f} times too little; 0.9999995 becomes {close:.7f}",
        holds={
            "a norm under max_norm is changed": close < 0.9999995,
            "a tiny max_norm overshoots by 500": 400 < 1e-9 / tiny < 600,
            "the ball's radius is max_norm, not 1": abs(wide - 5) < 1e-5,
        },
    )


@experiment(
    "clipping-spreads-nan",
    claim="Clipping with one NaN makes every gradient NaN; with one inf it zeroes every other gradient and turns the inf into NaN.",
    taught="Clipping helps whenever the loss goes to NaN.",
)
def clipping_spreads_nan() -> Measured:
    nan, inf, huge = (
        _after_clipping(float("nan")),
        _after_clipping(float("inf")),
        _after_clipping(1e30),
    )
    refused = _parameters(_ninety(float("inf")))
    error = error_of(lambda: clip_grad_norm_(refused, 1.0, error_if_nonfinite=True))
    untouched = bool(torch.equal(_flat(refused), _ninety(float("inf"))))
    return Measured(
        sides={
            "one NaN": _counts(nan),
            "one inf": _counts(inf),
            "one 1e30": _counts(huge),
            "one inf, error_if_nonfinite": _counts(_flat(refused)) | {"raises": error},
        },
        conclusion=(
            f"of 90 gradients one NaN makes {int(nan.isnan().sum())} NaN; one inf makes {int(inf.isnan().sum())} NaN and "
            f"{int((inf == 0).sum())} zero; one 1e30 makes {int((huge == 0).sum())} zero; error_if_nonfinite raises {error}"
        ),
        holds={
            "one NaN spreads to all": bool(nan.isnan().all()),
            "one inf: itself NaN, all others zero": int(inf.isnan().sum()) == 1
            and int((inf == 0).sum()) == 89,
            "a finite gradient whose norm overflows: all zero": bool((huge == 0).all()),
            "error_if_nonfinite raises and touches nothing": error == "RuntimeError" and untouched,
        },
    )


@experiment(
    "inf-means-skip-not-clip",
    claim="After an inf gradient a clipped step writes NaN into the weights; a skipped step leaves them whole.",
    taught="Clipping at 10 helps against inf gradients.",
)
def inf_means_skip_not_clip() -> Measured:
    def step(*, skip: bool) -> tuple[int, int]:
        torch.manual_seed(0)
        model = nn.Linear(9, 9)
        start = flat(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 9)).sum().backward()
        model.weight.grad[0, 0] = float("inf")  # type: ignore[index]
        norm = clip_grad_norm_(model.parameters(), 10.0)
        if bool(norm.isfinite()) or not skip:
            optimizer.step()
        now = flat(model.parameters())
        return int(now.isnan().sum()), int((now == start).sum())

    clipped, skipped = step(skip=False), step(skip=True)
    return Measured(
        sides={
            "clip and step": {"NaN weights": clipped[0], "weights that did not move": clipped[1]},
            "skip the step": {"NaN weights": skipped[0], "weights that did not move": skipped[1]},
        },
        conclusion=f"of 90 weights the clipped step makes {clipped[0]} NaN and moves none of the other {clipped[1]}; the skipped one keeps all {skipped[1]}",
        holds={
            "clipping writes NaN": clipped[0] == 1,
            "and teaches nothing": clipped[1] == 89,
            "skipping keeps the weights": skipped == (0, 90),
        },
    )


@experiment(
    "value-against-norm-clipping",
    claim="At the usual limits, 0.5 by value and 1 by norm, neither kind of clipping is always the stronger one: many small gradients keep most of their norm under value clipping, one spike loses more.",
    taught="Value clipping is more aggressive than norm clipping.",
)
def value_against_norm_clipping() -> Measured:
    torch.manual_seed(0)
    many = 0.4 * torch.randn(1_000_000)
    by_value, by_norm = _clipped(many, value=0.5), _clipped(many, norm=1.0)
    spike = torch.tensor([100.0, *[0.01] * 99])
    spike_value, spike_norm = _clipped(spike, value=0.5), _clipped(spike, norm=1.0)
    return Measured(
        sides={
            "a million gradients of 0.4": {
                "norm": float(many.norm()),
                "norm left by value clipping at 0.5": float(by_value.norm()),
                "norm left by norm clipping at 1": float(by_norm.norm()),
            },
            "one spike": {
                "norm": float(spike.norm()),
                "norm left by value clipping at 0.5": float(spike_value.norm()),
                "norm left by norm clipping at 1": float(spike_norm.norm()),
            },
        },
        conclusion=(
            f"of a norm of {float(many.norm()):.0f} value clipping at 0.5 leaves {float(by_value.norm()):.0f}, norm clipping {float(by_norm.norm()):.0f}; "
            f"of one spike {float(spike_value.norm()):.2f} and {float(spike_norm.norm()):.2f}"
        ),
        holds={
            "many small gradients keep most of their norm under value clipping": float(
                by_value.norm() / many.norm()
            )
            > 0.5,
            "and hundreds of times more than under norm clipping": float(
                by_value.norm() / by_norm.norm()
            )
            > 100,
            "one spike keeps less": float(spike_value.norm()) < float(spike_norm.norm()),
        },
    )


@experiment(
    "value-clipping-changes-direction",
    claim="Value clipping is clamp_, and turns the gradient away from its direction.",
)
def value_clipping_changes_direction() -> Measured:
    torch.manual_seed(0)
    spike = torch.randn(100)
    spike[0] = 100.0
    by_value, by_norm = _clipped(spike, value=1.0), _clipped(spike, norm=1.0)
    same = bool(torch.equal(by_value, spike.clamp(-1, 1)))
    return Measured(
        sides={
            "value clipping": {"cosine to the gradient": cosine(by_value, spike)},
            "norm clipping": {"cosine to the gradient": cosine(by_norm, spike)},
        },
        conclusion=f"with one spike value clipping leaves a cosine of {cosine(by_value, spike):.2f} to the gradient, norm clipping {cosine(by_norm, spike):.2f}",
        holds={
            "value clipping is clamp_, bit by bit": same,
            "it turns the gradient by more than 60 degrees": cosine(by_value, spike) < 0.5,
            "norm clipping does not": cosine(by_norm, spike) > 1 - 1e-9,
        },
    )


@experiment(
    "global-clip-couples-groups",
    claim="One global clip shrinks the backbone because of the head; a clip per group does not.",
    taught="A global clip at 10 does not affect the backbone.",
)
def global_clip_couples_groups() -> Measured:
    def backbone(head: float, *, per_group: bool) -> float:
        body, top = _parameters(torch.tensor([0.05])), _parameters(torch.tensor([head]))
        for group in (body, top) if per_group else (body + top,):
            clip_grad_norm_(group, 10.0)
        return float(_flat(body).norm())

    heads = (1.0, 15.0, 1000.0)
    together = [backbone(h, per_group=False) for h in heads]
    apart = [backbone(h, per_group=True) for h in heads]
    return Measured(
        sides={
            "one clip for all": {
                f"backbone's 0.05, head {h:g}": n for h, n in zip(heads, together, strict=True)
            },
            "one clip per group": {
                f"backbone's 0.05, head {h:g}": n for h, n in zip(heads, apart, strict=True)
            },
        },
        conclusion=f"the backbone's norm of 0.05 becomes {together[1]:.4f} when the head's is 15 and {together[2]:.4f} when it is 1000; clipped per group it stays",
        holds={
            "a head of 15 shrinks the backbone by a third": abs(together[1] / 0.05 - 2 / 3) < 0.01,
            "a head of 1000 by a hundred": abs(together[2] / 0.05 - 0.01) < 1e-3,
            "per group it stays": all(abs(n - 0.05) < 1e-6 for n in apart),
        },
    )


@experiment(
    "per-layer-clip-forgets-layers",
    claim="Clipping `isinstance(m, (nn.Linear, nn.Conv2d))` layer by layer leaves embeddings and layer norms unclipped.",
    taught="Per-layer clipping bounds every layer.",
)
def per_layer_clip_forgets_layers() -> Measured:
    model = _encoder()
    before, worst_before = _flat(model.parameters()), _largest_outside(model)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            clip_grad_norm_(module.parameters(), 1.0)
    after = _flat(model.parameters())
    worst = _largest_outside(model)
    direction = cosine(before, after)
    return Measured(
        sides={
            "before": {
                "total norm": float(before.norm()),
                "largest norm of an embedding or layer norm": worst_before,
                "cosine to the gradient": 1.0,
            },
            "Linear and Conv2d clipped at 1": {
                "total norm": float(after.norm()),
                "largest norm of an embedding or layer norm": worst,
                "cosine to the gradient": direction,
            },
        },
        conclusion=f"clipped at 1 layer by layer, the total norm is still {float(after.norm()):,.0f} of {float(before.norm()):,.0f}",
        holds={
            "the total norm is still over 100": float(after.norm()) > 100,
            "because of layers in no list, which are as they were": worst == worst_before > 10,
            "and the direction changed": direction < 0.99,
        },
    )


def _largest_outside(model: nn.Module) -> float:
    """The largest gradient norm of layers that a list of Linear and Conv2d leaves out."""
    left_out = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.LayerNorm)))
    return max(float(_flat(m.parameters()).norm()) for m in left_out)


@experiment(
    "per-layer-clip-twice-is-harmless",
    claim="Clipping attention and then, nested in it, its out_proj again changes nothing.",
)
def per_layer_clip_twice_is_harmless() -> Measured:
    model = _encoder()
    attention = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention))
    before = float(_flat(attention.out_proj.parameters()).norm())
    clip_grad_norm_(attention.parameters(), 1.0)
    once = _flat(attention.out_proj.parameters())
    clip_grad_norm_(attention.out_proj.parameters(), 1.0)
    twice = _flat(attention.out_proj.parameters())
    change = float((twice - once).abs().max())
    return Measured(
        sides={
            "not clipped": {"norm of out_proj": before},
            "attention clipped": {"norm of out_proj": float(once.norm())},
            "and out_proj again": {"norm of out_proj": float(twice.norm())},
        },
        conclusion=f"attention's clip takes out_proj's norm from {before:,.0f} to {float(once.norm()):.2f}, and a second one for out_proj changes its gradient by {change:g}",
        holds={
            "on its own a clip at 1 would change it": before > 10,
            "after attention's it changes nothing": change < 1e-6,
            "out_proj is a Linear": isinstance(attention.out_proj, nn.Linear),
        },
    )


@experiment(
    "lbfgs-recomputes",
    claim="LBFGS calls its closure again inside step(): gradients clipped before it are never used.",
    taught="Clipping works with any optimizer.",
)
def lbfgs_recomputes() -> Measured:
    def weights_after(clip: str) -> Tensor:
        torch.manual_seed(0)
        model, x, y = nn.Linear(4, 1), torch.randn(32, 4), 10 * torch.randn(32, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if clip == "inside":
                clip_grad_norm_(model.parameters(), 0.1)
            return loss

        closure()
        if clip == "before":
            clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step(closure)
        return flat(model.parameters())

    none, before, inside = (weights_after(clip) for clip in ("none", "before", "inside"))
    difference, effect = float((before - none).norm()), float((inside - none).norm())
    return Measured(
        sides={
            "clip before step(closure)": {"weights differ from no clipping by": difference},
            "clip inside the closure": {"weights differ from no clipping by": effect},
        },
        conclusion=f"clipping before step(closure) changes the weights by {difference:g}, clipping inside the closure by {effect:.2f}",
        holds={"before is without effect": difference == 0, "inside works": effect > 0.01},
    )


def _encoder() -> nn.Module:
    """An embedding and a two-layer transformer encoder with large gradients in them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(50, 32),
        *(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)),
        nn.Linear(32, 50),
    )
    tokens = torch.randint(50, (8, 12))
    (1e4 * nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())).backward()
    return model


def _parameters(*gradients: Tensor) -> list[nn.Parameter]:
    """Parameters with these gradients."""
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        found.append(parameter)
    return found


def _flat(parameters: Iterable[nn.Parameter]) -> Tensor:
    return flat(p.grad for p in parameters)


def _clipped(gradient: Tensor, *, norm: float | None = None, value: float | None = None) -> Tensor:
    parameters = _parameters(gradient)
    if norm is not None:
        clip_grad_norm_(parameters, norm)
    if value is not None:
        clip_grad_value_(parameters, value)
    return _flat(parameters)


def _ninety(bad: float) -> Tensor:
    """90 gradients, one of them `bad`."""
    gradient = torch.randn(90, generator=torch.Generator().manual_seed(0))
    gradient[7] = bad
    return gradient


def _after_clipping(bad: float) -> Tensor:
    return _clipped(_ninety(bad), norm=1.0)


def _counts(gradient: Tensor) -> dict[str, int | str]:
    return {
        "NaN, of 90": int(gradient.isnan().sum()),
        "zero, of 90": int((gradient == 0).sum()),
        "raises": "none",
    }

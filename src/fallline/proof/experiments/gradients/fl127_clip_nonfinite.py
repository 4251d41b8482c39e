"""FL127: one gradient value becomes NaN or inf; then a step with and without clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import flat, gradient

NAN, INF = float("nan"), float("inf")


@experiment(
    "FL127",
    claim="One NaN among the gradients and the clip turns all of them into NaN; one inf and every finite gradient becomes zero. Without the clip only the affected value is lost.",
    taught="Clip whenever the loss goes to NaN.",
)
def clip_nonfinite() -> Measured:
    clipped_nan, lost_nan, _ = _step(NAN, clip=True)
    _, bare_nan, total = _step(NAN, clip=False)
    clipped_inf, lost_inf, _ = _step(INF, clip=True)
    bare_inf, _, _ = _step(INF, clip=False)
    zeroed = int((clipped_inf == 0).sum())
    model = _poisoned(INF)
    before = gradient(model)
    raised = error_of(lambda: clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True))
    untouched = torch.equal(before, gradient(model))
    return Measured(
        sides={
            "wrong": {
                "one NaN: parameters lost in the step": lost_nan,
                "one NaN: gradients that are NaN": int(clipped_nan.isnan().sum()),
                "one inf: parameters lost in the step": lost_inf,
                "one inf: gradients that are zero": zeroed,
                "one inf: gradients that are NaN": int(clipped_inf.isnan().sum()),
            },
            "right": {
                "one NaN: parameters lost in the step": bare_nan,
                "one inf: gradients that are zero": int((bare_inf == 0).sum()),
                "with error_if_nonfinite=True": raised,
            },
        },
        conclusion=f"one NaN among {total} gradients: clipped, {lost_nan} of {total} parameters are NaN after the step, unclipped {bare_nan}; "
        f"one inf: clipped, {zeroed} of {total} gradients are zero and the inf is NaN; with error_if_nonfinite=True it raises and touches nothing",
        holds={
            "one NaN and all parameters are lost": lost_nan == total,
            "without the clip only the affected one is": bare_nan == 1,
            "one inf zeroes every finite gradient": zeroed == total - 1
            and not (bare_inf == 0).any(),
            "and becomes NaN itself": int(clipped_inf.isnan().sum()) == 1,
            "error_if_nonfinite raises before it touches anything": raised == "RuntimeError"
            and untouched,
        },
    )


def _poisoned(value: float) -> nn.Module:
    model, ((batch,),) = regression(updates=1)
    mse_loss(model(batch[0]), batch[1]).backward()
    first = next(model.parameters())
    assert first.grad is not None
    first.grad[0, 0] = value
    return model


def _step(value: float, *, clip: bool) -> tuple[torch.Tensor, int, int]:
    """The gradients that stepped, how many parameters are not finite afterwards, and how many there are."""
    model = _poisoned(value)
    if clip:
        clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = flat(model.parameters())
    return gradient(model), int((~after.isfinite()).sum()), after.numel()

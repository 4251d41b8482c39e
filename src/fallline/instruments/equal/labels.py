"""The update with labels as they are, where they are shifted twice, against labels that are shifted once."""

from __future__ import annotations

from fallline.instruments.equal.features import judged
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.targets import SHIFTED_TWICE

__all__ = ["compare_labels"]


def compare_labels(plan: Plan) -> None:
    """Only where they are shifted twice: the same update with labels that are shifted once."""
    if SHIFTED_TWICE not in plan.base.met:
        return
    other = plan.attempt("labels", plan.way.but("labels shifted once", labels=True, loader=plan.base.loader), "the loop does not run with labels shifted once")  # fmt: skip
    if other is not None:
        why = ": every position learns the token after the next one"
        plan.add(judged(plan, "labels", plan.base.unclipped, other.unclipped, "labels shifted twice", "labels shifted once", why=why))  # fmt: skip

"""The loss that is trained against the loss that the evaluation logs, on one and the same sample."""

from __future__ import annotations

import math

from fallline.instruments.equal.evaluated import RETURNED, Logged
from fallline.instruments.equal.explain import Place
from fallline.instruments.equal.pieces import ROUNDOFF
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.report import Comparison, times

__all__ = ["compare_evaluation"]


def compare_evaluation(plan: Plan) -> None:
    """Where the script evaluates after an epoch, which is cut to one update for it."""
    base = plan.base
    if base.loader < 0 or not base.length:
        plan.cannot("evaluation", "the samples do not come from a DataLoader whose length is known")
        return
    way = plan.way.but("evaluation", loader=base.loader, limit=plan.k, one_sample=True)
    run = plan.attempt("evaluation", way, "the loop does not run on one sample")
    if run is None:
        return
    found = _judged(plan, run) if run.backwards else None
    if found is None:
        plan.cannot(
            "evaluation", "no evaluation loop with a loss was seen after an epoch of one update"
        )
    plan.add(found)


def _judged(plan: Plan, run: Record) -> Comparison | None:
    trained = _trained(run, plan.k)
    # a mean over many batches of one number is that number, but for the rounding of the sum
    tolerance = plan.tolerance() + ROUNDOFF["float32"] * math.sqrt(max(1, run.elements))
    values = [(name, value, path, line) for name, value, path, line in run.logged if value]
    right = [v for v in values if abs(v[1] - trained) <= tolerance * abs(trained)]
    if right:
        text = (
            f"the evaluation's loss of a sample is the loss that is trained on it ({trained:.4g})."
        )
        return Comparison(
            "evaluation", right[0][1] / trained, None, tolerance, True, None, "", 0, text
        )
    candidate = _likeliest(values)
    if candidate is None:
        return None
    name, value, path, line = candidate
    place, ratio = Place(path, line), value / trained
    text = f"The evaluation's loss of a sample ({name}) is {times(ratio)} the loss that is trained on it{place.said(None)}."
    return Comparison("evaluation", ratio, None, tolerance, False, None, path, line, text)


def _likeliest(values: list[Logged]) -> Logged | None:
    """The number that is meant to be the loss; an accuracy may be returned beside it."""
    named = [v for v in values if "loss" in v[0].lower()]
    held_out = [v for v in named if any(word in v[0].lower() for word in ("val", "eval", "test"))]
    alone = [v for v in values if v[0] == RETURNED]
    found = held_out or alone or named
    return found[-1] if found else None


def _trained(run: Record, k: int) -> float:
    """The loop's own loss, without what it divides by because it accumulates.

    A loop that looks ahead divides each part by a count of all of them: the loss is their sum.
    """
    first = run.backwards[0]
    if k > 1 and first.batches >= k and len(run.backwards) >= k:
        return sum(b.loss for b in run.backwards[:k]) / run.scale
    divided = sum(math.isclose(d, k, rel_tol=1e-6) for d in first.divisors) if k > 1 else 0
    return first.loss * float(k) ** divided / run.scale

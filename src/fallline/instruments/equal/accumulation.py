"""One update in micro-batches against the same samples at once; and the last, shorter update of an epoch."""

from __future__ import annotations

import os

from fallline.instruments.equal.explain import (
    Place,
    accumulated,
    after_clipping,
    at_once,
    loss_scale,
)
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.report import Comparison, Equal
from fallline.instruments.equal.runs import Failed

__all__ = ["compare_accumulation", "compare_remainder"]


def compare_accumulation(plan: Plan) -> None:
    """Also whether clipping is the last thing that happens to the gradient."""
    base, k = plan.base, plan.k
    if k < 2:
        plan.cannot("accumulation", "every backward is followed by a step")
    else:
        big = _from_loader(plan) if base.loader >= 0 and base.batches >= k else _as_fed(plan)
        if big is not None:
            found = accumulated("accumulation", base, at_once(base, big), plan.tolerance())
            plan.add(_in_full_precision(plan) or found if found.equal else found)
    plan.add(loss_scale(base, plan.tolerance()))
    plan.add(after_clipping(base, plan.tolerance()))


def _in_full_precision(plan: Plan) -> Comparison | None:
    """Autocast's rounding could hide a small difference: what is left of it without."""
    if "autocast" not in plan.base.met:
        return None
    way = plan.without("autocast")
    exact = Plan(plan.runs, Equal(), way, plan.base)
    try:
        exact.base = plan.runs.run(way)
        big = _from_loader(exact) if exact.base.loader >= 0 else None
        if big is None:
            return None
        return accumulated("accumulation", exact.base, at_once(exact.base, big), exact.tolerance())
    except Failed:
        return None


def _from_loader(plan: Plan) -> Record | None:
    """An epoch that ends with the big batch: a loop that looks ahead finds nothing else to count."""
    way = plan.way.but(
        "at once",
        at_once=plan.k,
        loader=plan.base.loader,
        limit=plan.k,
        before=plan.before,
        budget=plan.budget,
    )
    try:
        return plan.runs.run(way)
    except Failed as why:
        if "out of memory" in str(
            why
        ):  # of the device: the big batch needs more of it than the loop does
            way = way.but("at once, offloaded", offload=True, budget=0)
            return plan.attempt("accumulation", way, "the samples at once do not fit into memory")
        said = f"the loop does not run on the samples of {plan.k} micro-batches at once"
        return plan.attempt("accumulation", way.but("at once, and on", limit=0), said)


def _as_fed(plan: Plan) -> Record | None:
    """The loop makes its micro-batches itself: what the model and the loss were given is put together instead."""
    base, k = plan.base, plan.k
    rows = {b.samples for b in base.backwards}
    if base.loader >= 0 and base.batches and 0 in rows:
        plan.cannot(
            "accumulation",
            f"{k} losses of one batch go backward, and not all of them come from the model",
        )
        return None
    strange = [d for b in base.backwards for d in b.divisors if d != 1 and abs(d - k) > 1e-6 * k]
    if strange:
        plan.cannot(
            "accumulation",
            f"the loop makes its micro-batches itself and divides the loss by {strange[0]:g}: what that would be for all of them is not known",
        )
        return None
    inputs = os.path.join(plan.runs.folder, "inputs")
    said = f"the loop does not run on what its {k} micro-batches were fed, put together"
    if plan.attempt("accumulation", plan.way.but("keeping inputs", keep=inputs), said) is None:
        return None
    return plan.attempt(
        "accumulation", plan.way.but("at once", at_once=k, feed=inputs, budget=plan.budget), said
    )


def compare_remainder(plan: Plan) -> None:
    """An epoch that ends in the middle of an accumulation, made short so that it comes first."""
    base, k = plan.base, plan.k
    if k < 2 or plan.way.update or plan.way.optimizer >= 0:
        return
    if base.loader < 0 or base.batches < k or not base.length:
        plan.cannot("remainder", "the length of an epoch is not known")
        return
    left = base.length % k
    if not left:
        plan.cannot(
            "remainder",
            f"an epoch has {base.length} micro-batches, which {k} divides: nothing is left over",
        )
        return
    way = plan.way.but("remainder", loader=base.loader, limit=left)
    said = f"the loop does not run on an epoch of {left} micro-batches"
    short = plan.attempt("remainder", way, said)
    if short is None:
        return
    if not short.stepped or len(short.backwards) > left:
        plan.add(_never_stepped(plan, short, left))
        return
    big = plan.attempt("remainder", way.but("remainder at once", at_once=k), said)
    if big is not None:
        reference = at_once(short, big, k)
        plan.add(accumulated("remainder", short, reference, plan.tolerance()))


def _never_stepped(plan: Plan, short: Record, left: int) -> Comparison:
    first = plan.base
    place = Place(first.step_path, first.step_line)
    count = f"the {left} micro-batches" if left > 1 else "the micro-batch"
    if short.stepped:
        text = f"{count} left over at the end of an epoch wait{'' if left > 1 else 's'} for the next epoch's first update, which is made of {len(short.backwards)}"
    else:
        text = f"{count} left over at the end of an epoch never reach{'' if left > 1 else 'es'} the optimizer"
    text = text[0].upper() + text[1:] + place.said("FL107") + "."
    return Comparison(
        "remainder", None, None, plan.tolerance(), False, "FL107", place.path, place.line, text
    )

"""The update with a feature of the loop against the update without it; other orders of the samples, longer paddings."""

from __future__ import annotations

import math

from fallline.instruments.equal.explain import Place, comparison, within
from fallline.instruments.equal.pieces import ROUNDOFF, Parting, compare
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.record import Record, Vectors
from fallline.instruments.equal.report import Comparison, times
from fallline.instruments.equal.runs import Failed
from fallline.instruments.equal.way import Way

__all__ = [
    "compare_compile",
    "compare_features",
    "compare_order",
    "compare_padding",
    "compare_precision",
]

# what it is called, what is there instead
_WITHOUT = {
    "autocast": ("autocast", "full precision"),
    "attention kernels": ("the fused attention kernel", "the plain one"),
    "channels_last": ("channels_last", "the usual memory format"),
}


def compare_compile(plan: Plan) -> None:
    """Before all others, which then do without it: a graph keeps all its activations until it ends, and takes long to compile."""
    if "compile" not in plan.base.met:
        return
    eager = plan.without("compile")
    other = plan.attempt("compile", eager, "the loop does not run without torch.compile")
    if other is None:
        return
    # a compiled graph does not show its modules, nor what they compute in
    plan.base.dtype, plan.base.calls, plan.base.terms = other.dtype, other.calls, other.terms
    plan.add(judged(plan, "compile", plan.base.unclipped, other.unclipped, "torch.compile", "the model as written"))  # fmt: skip
    plan.way, plan.base = eager, other
    plan.answer.notes.append("Everything but compile was compared without torch.compile.")


def compare_features(plan: Plan) -> None:
    """Only what the loop uses."""
    met = set(plan.base.met)
    for name, (called, instead) in _WITHOUT.items():
        if name in met:
            other = plan.attempt(
                name, plan.without(name), f"the loop does not run without {called}"
            )
            if other is not None:
                found = judged(plan, name, plan.base.unclipped, other.unclipped, called, instead)
                plan.add(found)
    if "checkpointing" in met:
        _checkpointing(plan)
    if "optimizer kernels" in met:
        _optimizer(plan)


def judged(
    plan: Plan, what: str, ours: Vectors, reference: Vectors, called: str, instead: str,
    code: str | None = None, place: Place | None = None, why: str = "",
) -> Comparison:  # fmt: skip
    """Two gradients that should be the same."""
    tolerance = plan.tolerance()
    parting = compare(ours, reference, tolerance)
    if parting.apart > tolerance:
        tolerance = max(tolerance, 2 * _off_by(plan))  # both sides have it
        parting = compare(ours, reference, tolerance)
    if parting.apart <= tolerance:
        text = f"the gradient with {called} is that with {instead}, within {within(plan.base, tolerance)}."
        return comparison(what, parting, tolerance, True, None, Place("", 0), text)
    place = place or _at(plan.base)
    text = f"With {called} the gradient is {times(parting.ratio)} that with {instead}, direction {parting.cosine:.2f}{why or _missing(parting)}"
    return comparison(what, parting, tolerance, False, code, place, text + place.said(code) + ".")


def _off_by(plan: Plan) -> float:
    """What float32 itself is off by: a model may amplify roundings, which no count of them shows. 0 where that is not known, or
    where less than half of its digits are left, which is not rounding any more."""
    if not _can_double(plan.base):
        return 0.0
    try:
        exact = plan.runs.run(_in_float64(plan))
    except Failed:
        return 0.0
    apart = compare(plan.base.unclipped, exact.unclipped, 0.0).apart
    return apart if apart <= math.sqrt(ROUNDOFF["float32"]) else 0.0


def _can_double(base: Record) -> bool:
    return base.dtype == "float32" and base.processes == 1 and "deepspeed" not in base.met


def _in_float64(plan: Plan) -> Way:
    return plan.way.but("in float64", double=True, budget=plan.budget)


def _missing(parting: Parting) -> str:
    if not parting.missing:
        return ""
    more = f" and {len(parting.missing) - 1} more" if len(parting.missing) > 1 else ""
    return f": {parting.missing[0]}{more} get a gradient on one side only"


def _at(record: Record) -> Place:
    first = record.backwards[0]
    return Place(first.path, first.line)


def _checkpointing(plan: Plan) -> None:
    """With dropout on: the second forward pass has to drop the same values as the first."""
    on = plan.way.but("with dropout", dropout=True)
    off = plan.without("checkpointing", dropout=True)
    said = "the loop does not run without checkpointing"
    here = plan.attempt("checkpointing", on, said)
    there = plan.attempt("checkpointing", off, said)
    if here is None or there is None:
        return
    # later micro-batches may draw other numbers: a second forward pass can leave the generator elsewhere
    ours, reference = here.backwards[0].added, there.backwards[0].added
    drops = "dropout" in plan.base.met
    code = "FL407" if drops and _alike_without_dropout(plan) else None
    why = (
        ": the second forward pass drops other values than the first (preserve_rng_state=False)"
        if code
        else ""
    )
    plan.add(judged(plan, "checkpointing", ours, reference, "checkpointing", "all activations kept", code, _at(here), why))  # fmt: skip


def _alike_without_dropout(plan: Plan) -> bool:
    off = plan.without("checkpointing")
    other = plan.attempt("checkpointing", off, "the loop does not run without checkpointing")
    if other is None:
        return False
    tolerance = plan.tolerance()
    return compare(plan.base.unclipped, other.unclipped, tolerance).apart <= tolerance


def _optimizer(plan: Plan) -> None:
    what, said = "optimizer kernels", "the loop does not run with the optimizer's plain loop"
    if not plan.base.moved:
        plan.cannot(what, "the optimizer steps copies of the parameters")
        return
    other = plan.attempt(what, plan.without(what), said)
    if other is not None:
        place = Place(plan.base.step_path, plan.base.step_line)
        found = judged(plan, what, plan.base.moved, other.moved, f"{plan.base.optimizer}'s fused kernel", "its plain loop", None, place)  # fmt: skip
        found.message = found.message.replace("the gradient", "the step")
        plan.add(found)


def compare_order(plan: Plan) -> None:
    """The samples of every batch the other way round."""
    if plan.base.loader < 0:
        plan.cannot("order", "the samples do not come from a DataLoader")
        return
    other = plan.attempt(
        "order",
        plan.way.but("order", loader=plan.base.loader, reverse=True),
        "the loop does not run on a reversed batch",
    )
    if other is not None:
        plan.add(judged(plan, "order", plan.base.unclipped, other.unclipped, "the samples of a batch in their order", "these reversed"))  # fmt: skip


def compare_padding(plan: Plan) -> None:
    """Longer sequences, where a mask says which positions count."""
    if "attention mask" not in plan.base.met:
        return
    more = 8  # a multiple that tensor cores like, as people pad
    way = plan.way.but("padding", loader=plan.base.loader, pad=more)
    other = plan.attempt(
        "padding", way, f"the loop does not run on sequences padded by {more} more"
    )
    if other is not None:
        plan.add(judged(plan, "padding", plan.base.unclipped, other.unclipped, "the batch's own padding", f"{more} more positions of padding"))  # fmt: skip


def compare_precision(plan: Plan) -> None:
    """The loop's float32 against float64, which nothing rounds away from. Under autocast float32 is the reference already."""
    base = plan.base
    if not _can_double(base):
        return
    what, said = "precision", "the loop does not run in float64"
    other = plan.attempt(what, _in_float64(plan), said)
    if other is not None:
        plan.add(judged(plan, what, base.unclipped, other.unclipped, "float32", "float64"))

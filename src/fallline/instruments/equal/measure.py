"""Plans the runs: the loop as it is written, then the same samples in every other way that applies to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from fallline.errors import UsageError
from fallline.instruments.equal.accumulation import compare_accumulation, compare_remainder
from fallline.instruments.equal.evaluation import compare_evaluation
from fallline.instruments.equal.features import (
    compare_compile,
    compare_features,
    compare_order,
    compare_padding,
    compare_precision,
)
from fallline.instruments.equal.labels import compare_labels
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.ranks import compare_ranks
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.report import Equal
from fallline.instruments.equal.runs import Failed, Runs
from fallline.instruments.equal.way import AS_WRITTEN, Way
from fallline.instruments.frame import Progress
from fallline.instruments.script import Script

__all__ = ["equal"]

_COMPARISONS = {
    "accumulation": compare_accumulation,
    "remainder": compare_remainder,
    "features": compare_features,
    "precision": compare_precision,
    "order": compare_order,
    "padding": compare_padding,
    "labels": compare_labels,
    "evaluation": compare_evaluation,
    "ranks": compare_ranks,
}

_FIRST_ONLY = ("remainder", "evaluation", "ranks")  # made of the first update alone


def equal(
    target: Script | str | Callable[[], object],
    *arguments: str,
    ranks: int = 2,
    only: Collection[str] = (),
    update: int = 0,
    progress: Progress | None = None,
) -> Equal:
    """Make one update of a training loop, and the same update in other ways, and compare the gradients.

    `target`: a script, with its arguments after it, or a function that trains. `ranks`: how many processes are compared with one, for a
    script that can run on several. `only`: some of accumulation, remainder, features, precision, order, padding, labels, evaluation, ranks. `update`: which update, counted from 0;
    those before it are made as written. Where several optimizers step, the accumulation of each is compared. Nothing it writes is written, and this process is as before afterwards: every run is in a process
    of its own.
    """
    if unknown := set(only) - set(_COMPARISONS):
        raise UsageError(f"'{min(unknown)}' is not one of {', '.join(_COMPARISONS)}")
    if isinstance(target, str):
        target = Script(target, tuple(arguments))
    with Runs(target, progress) as runs:
        answer = Equal()
        try:
            way, base = _as_written(runs, update)
            plan = Plan(runs, answer, way, base, ranks)
            compare_compile(plan)
            for name, compare in _COMPARISONS.items():
                if (not only or name in only) and (not update or name not in _FIRST_ONLY):
                    compare(plan)
            if not only or "accumulation" in only:
                _other_optimizers(plan)
            answer.notes += _notes(plan)
        except KeyboardInterrupt:
            answer.partial, answer.status = True, 130
        answer.runs, answer.memory = runs.count, runs.memory()
        return answer


def _other_optimizers(plan: Plan) -> None:
    """A loop with several optimizers (a generator and a discriminator) makes an update of each."""
    first = plan.base
    for number in range(first.optimizers):
        way = plan.way.but(f"optimizer {number}", optimizer=number)
        if number == first.chosen:
            continue
        try:
            base = plan.runs.run(way)
        except Failed:
            base = Record()
        if not base.stepped:
            plan.answer.notes.append(f"Optimizer {number + 1} of {first.optimizers} did not step.")
            continue
        own = Plan(plan.runs, Equal(), way, base, plan.ranks)
        compare_accumulation(own)
        named = f"optimizer {number + 1} ({base.optimizer})"
        for found in own.answer.comparisons:
            found.message = f"{named}: {found.message}"
        plan.answer.comparisons += own.answer.comparisons
        for one in own.answer.unvaried:
            plan.cannot(f"{one.what} of {named}", one.why)


def _as_written(runs: Runs, update: int) -> tuple[Way, Record]:
    """The loop itself; a script that needs to be launched as a rank is."""
    way = AS_WRITTEN.but("as written", update=update)
    try:
        base = runs.run(way)
    except Failed as first:
        way = way.but("as rank 0 of 1", launched=True)
        try:
            base = runs.run(way)
        except Failed:
            sys.stderr.write(first.output)
            raise UsageError(f"the script failed before its first update: {first}") from None
    if not base.stepped and update:
        raise UsageError(f"the script ended before its update {update}: choose a smaller --update")
    if not base.stepped:
        raise UsageError(
            "the script ended without an update (no optimizer's step() was seen): name the script that trains, "
            "with the arguments that make it train. A loop that changes its parameters by hand cannot be compared"
        )
    return way, base


def _notes(plan: Plan) -> list[str]:
    base, notes = plan.base, []
    if plan.way.update:
        notes.append(f"This is update {plan.way.update}; those before it were made as written.")
    if base.optimizers > 1:
        notes.append(
            f"There are {base.optimizers} optimizers; all but the accumulation was compared for the one that steps first ({base.optimizer})."
        )
    if "dropout" in base.met:
        notes.append("Dropout was off, except where checkpointing was compared.")
    if "batch norm" in base.met:
        notes.append(
            "BatchNorm used its running statistics: those of a batch change with its size (FL128)."
        )
    return notes

"""One process against several with the same samples: does the sum over ranks make the update of one?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from fallline.instruments.equal.explain import Place, within
from fallline.instruments.equal.pieces import Parting, compare
from fallline.instruments.equal.plan import Plan
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.report import Comparison, times
from fallline.instruments.equal.runs import Failed
from fallline.instruments.script import Script

__all__ = ["compare_ranks"]

_SIGNS = ("distributed", "WORLD_SIZE", "LOCAL_RANK", "accelerate", "Accelerator", "deepspeed", "lightning", "Trainer", "Fabric")  # fmt: skip
_SAME = 0.02


def compare_ranks(plan: Plan) -> None:
    """Several ranks on this machine, over gloo where there is no GPU for each."""
    n = plan.ranks
    if n < 2:
        return
    if not _knows_ranks(plan.runs.target):
        plan.cannot("ranks", "the script is made for one process")
        return
    launched = plan.way.but("launched", launched=True)
    one = launched.but("one process", loader=plan.base.loader, rank_batches=n)
    several = launched.but(f"{n} processes", ranks=n)
    try:
        records = plan.runs.ranks(several)
    except Failed as why:
        plan.cannot("ranks", f"the script does not run on {n} processes here: {_said(str(why))}")
        return
    if any(r.processes != n for r in records):
        plan.cannot(
            "ranks", f"the script starts no process group when it is run as a job of {n} ranks"
        )
        return
    refused = f"one process does not run on the batches of {n}"
    alone = plan.attempt("ranks", one, refused)
    if alone is not None and _apart(records, alone) and (batches := _together(records)):
        # the ranks shuffle differently than one process does: it is given the samples that they read
        alone = plan.attempt(
            "ranks", one.but("one process", rank_batches=1, batches=batches), refused
        )
    if alone is not None:
        plan.add(_judged(plan, records, alone))


def _said(why: str) -> str:
    """What torch says where a device is missing does not name it."""
    wants = any(word in why.lower() for word in ("cuda", "nccl", "device ordinal"))
    return f"it needs a GPU for each ({why})" if wants else why


def _knows_ranks(target: object) -> bool:
    if not isinstance(target, Script) or target.module:
        return True
    try:
        text = Path(target.path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(sign in text for sign in _SIGNS)


def _judged(plan: Plan, records: list[Record], alone: Record) -> Comparison | None:
    n, tolerance = len(records), plan.tolerance()
    first = records[0]
    place = Place(first.backwards[0].path, first.backwards[0].line)
    for rank, record in enumerate(records[1:], 1):
        apart = compare(record.reached, first.reached, tolerance)
        if apart.apart > tolerance:
            text = f"The gradient of rank {rank} is not that of rank 0 when they step: it is not summed over the ranks"
            return _comparison(
                apart, tolerance, "FL320", Place(first.step_path, first.step_line), text
            )
    if _other_samples(records, alone):
        if _alike(records):
            parting = compare(first.unclipped, alone.unclipped, tolerance)
            return _comparison(
                parting,
                tolerance,
                "FL304",
                place,
                f"{'Both' if n == 2 else f'All {n}'} ranks read the same samples",
            )
        plan.cannot(
            "ranks", f"{n} ranks read other samples than one process with {n} times the batch"
        )
        return None
    parting = compare(first.unclipped, alone.unclipped, tolerance)
    if parting.apart <= tolerance:
        text = f"{n} ranks make the gradient of one process with their samples, within {within(plan.base, tolerance)}."
        return Comparison(
            "ranks", parting.ratio, parting.cosine, tolerance, True, None, "", 0, text
        )
    text = f"The gradient of {n} ranks is {times(parting.ratio)} that of one process with the same samples"
    code = None
    if parting.cosine > 1 - _SAME and abs(parting.ratio * n - 1) < _SAME:
        code, text = (
            "FL137",
            f"{text}: it is divided by {n} twice, by the loop and by the reduction",
        )
    elif parting.cosine > 1 - _SAME and abs(parting.ratio / n - 1) < _SAME:
        code, text = "FL137", f"{text}: the sum over the ranks is not divided by {n}"
    elif parting.cosine <= 1 - _SAME or abs(parting.ratio - 1) < _SAME:
        text = f"{text}, direction {parting.cosine:.2f}: each rank's mean counts the same, or they are not summed alike"
    return _comparison(parting, tolerance, code, place, text)


def _other_samples(records: list[Record], alone: Record) -> bool:
    ours = [_samples(r) for r in records]
    return all(ours) and sorted(i for rank in ours for i in rank) != sorted(_samples(alone))


def _alike(records: list[Record]) -> bool:
    return all(sorted(_samples(r)) == sorted(_samples(records[0])) for r in records)


def _apart(records: list[Record], alone: Record) -> bool:
    """Every rank reads samples of its own, and these are not the ones that one process reads."""
    return _other_samples(records, alone) and not _alike(records)


def _together(records: list[Record]) -> tuple[tuple[int, ...], ...]:
    """The batches of one process that reads what the ranks read, micro-batch by micro-batch; nothing where samples have no number."""
    ranks = [_batches(r) for r in records]
    if not all(index.isdecimal() for rank in ranks for batch in rank for index in batch):
        return ()
    if len({len(rank) for rank in ranks}) > 1:
        return ()
    return tuple(
        tuple(int(index) for batch in each for index in batch) for each in zip(*ranks, strict=True)
    )


def _batches(record: Record) -> list[list[str]]:
    """The samples of each backward."""
    left = iter(record.indices)
    return [list(islice(left, backward.samples)) for backward in record.backwards]


def _samples(record: Record) -> list[str]:
    """What was read for this update; a loader may have read on."""
    return record.indices[: sum(b.samples for b in record.backwards)]


def _comparison(
    parting: Parting, tolerance: float, code: str | None, place: Place, text: str
) -> Comparison:
    message = text + place.said(code) + "."
    return Comparison(
        "ranks",
        parting.ratio,
        parting.cosine,
        tolerance,
        False,
        code,
        place.path,
        place.line,
        message,
        parting.parameters,
    )

"""Measures the ranks of a torchrun job: each rank runs this, meets the others in the store, and rank 0 has the answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.ranks.judge import sampler_overlap, stragglers
from fallline.instruments.ranks.machine import Machine, here, torchrun_line
from fallline.instruments.ranks.meeting import Meeting, SilentRank
from fallline.instruments.ranks.parameters import unequal
from fallline.instruments.ranks.report import Ranks, Trained
from fallline.instruments.ranks.talk import Talk, talk
from fallline.instruments.script import Script

__all__ = ["measure_ranks"]

_NOTICED = 0.1  # of an update: a rank that lags by less holds nobody up
_PATIENCE = 300.0  # seconds that one rank's script may take longer than another's


def measure_ranks(
    target: Script | str | Callable[[], object] | None = None,
    *,
    updates: int = 20,
    seconds: float = 30.0,
    progress: Progress | None = None,
) -> Ranks:
    """On every rank of a job: who they are, whether and how fast they reach each other, and, of a script (or a function that trains),
    whether they train together.

    `seconds` is how long a rank may take to answer. A process group that is there already is used. Alone it says what this machine has and
    how to start a job on it.
    """
    if isinstance(target, str):
        target = Script(target)
    machine = here()
    script = target.path if isinstance(target, Script) else "train.py"
    line = torchrun_line(machine, script)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2:
        if target is not None:
            measured = torchrun_line(machine, f"-m fallline measure ranks {script}")
            raise UsageError(f"the ranks of a script are compared under torchrun: {measured}")
        return Ranks(1, [machine], line, problems=_alone(machine))
    found = Ranks(world, [machine], line)
    try:
        meeting = Meeting(seconds=seconds)
        told = meeting.gather("who is there", machine.to_json())
        found.machines = [Machine(**each) for each in told]
        found.problems += _unlike(found.machines)
        found.talk = Talk()
        talk(meeting, found.machines, found.talk, progress)
        found.problems += [
            f"rank {rank} takes {times:.1f} times as long as the others for the same work"
            for rank, times in stragglers(found.talk.work).items()
        ]
        if target is not None:
            _script(found, meeting, target, updates, progress)
        meeting.leave()
    except SilentRank as silent:
        found.silent, found.partial, found.status = str(silent), True, 1
    except KeyboardInterrupt:
        found.partial, found.status = True, 130
    return found


def _alone(machine: Machine) -> list[str]:
    if machine.devices and "nccl" not in machine.backends:
        return [
            "this torch has no NCCL: ranks on GPUs would talk over gloo, through the host's memory"
        ]
    return []


def _unlike(machines: list[Machine]) -> list[str]:
    """What should be the same everywhere, and is not; what should not be, and is."""
    found = []
    for name, what in (("torch", "torch"), ("cuda", "CUDA"), ("nccl", "NCCL"), ("driver", "driver"), ("python", "Python")):  # fmt: skip
        versions: dict[Any, list[int]] = {}
        for machine in machines:
            versions.setdefault(getattr(machine, name), []).append(machine.rank)
        if len(versions) > 1:
            told = "; ".join(f"{v} on rank {', '.join(map(str, r))}" for v, r in versions.items())
            found.append(f"not the same {what} everywhere: {told}")
    kinds = {machine.devices[machine.local_rank] for machine in machines if machine.local_rank < len(machine.devices)}  # fmt: skip
    if len(kinds) > 1:
        found.append(
            f"not the same GPU everywhere ({', '.join(sorted(kinds))}): the slowest sets the pace"
        )
    if any(machine.devices for machine in machines):
        bare = [str(machine.rank) for machine in machines if machine.device == "cpu"]
        if bare:
            found.append(
                f"rank {', '.join(bare)} has no GPU of its own: there are more ranks than GPUs"
            )
    return found


def _script(
    found: Ranks,
    meeting: Meeting,
    target: Script | Callable[[], object],
    updates: int,
    progress: Progress | None,
) -> None:
    from fallline.instruments.ranks.training import train

    mine = train(target, updates, progress if meeting.rank == 0 else None)
    # a rank may still be in its last update, or in the traceback of its own
    told = meeting.gather("the script", mine, seconds=max(meeting.seconds, _PATIENCE))
    found.partial = any(each["partial"] for each in told)
    found.status = max(each["status"] for each in told)
    found.trained = trained = compared(told)
    overlap = trained.overlap
    if overlap is not None and overlap.shared and not overlap.is_padding:
        found.problems.append(
            f"{overlap.share:.0%} of the samples were read by several ranks (rank {', '.join(map(str, overlap.ranks))}): give the "
            "loader a DistributedSampler"
        )
    elif trained.whole is not None:
        found.problems.append(
            f"every rank reads all {trained.whole} samples of the dataset in an epoch: give the loader a DistributedSampler"
        )
    if trained.repeats:
        found.problems.append(
            "the second epoch has the order of the first: sampler.set_epoch(epoch) is missing"
        )
    if trained.unequal_update is not None:
        name, ranks = next(iter(trained.unequal.items()))
        found.problems.append(
            f"parameters differ between ranks from update {trained.unequal_update} on, {name} first (rank {', '.join(map(str, ranks))})"
        )
    states = [each["seeds"].get("torch") for each in told]
    if len(set(states)) == 1 and states[0] is not None:
        found.notes.append(
            "all ranks draw the same random numbers: dropout and augmentation are the same on every rank (seed + rank makes them differ)"
        )
    elif not trained.ddp and trained.unequal_update == 0:
        found.notes.append(
            "the model is in no DistributedDataParallel, and every rank began from its own seed"
        )
    found.problems += [
        f"rank {rank} takes {times:.1f} times as long as the others before its backward"
        for rank, times in stragglers(trained.own).items()
        if trained.own[rank] - min(trained.own)
        > _NOTICED * max(e["synchronised"] or 0.0 for e in told)
    ]


def compared(told: list[dict[str, Any]]) -> Trained:
    """What the ranks saw, side by side."""
    first: int | None = None
    names: dict[str, list[int]] = {}
    updates = min(len(each["prints"]) for each in told)
    for update in range(updates):
        names = unequal([each["prints"][update] for each in told])
        if names:
            first = update
            break
    samples = [each["samples"] for each in told]
    compute, communication, micro_batches, synchronising = _costs(told)
    return Trained(
        updates=min(each["updates"] for each in told),
        ddp=all(each["ddp"] for each in told),
        seeds=[each["seeds"] for each in told],
        overlap=sampler_overlap(samples) if any(samples) else None,
        whole=_whole(told),
        repeats=any(each["repeats"] for each in told),
        unequal_update=first,
        unequal=names,
        compared=updates,
        own=[each["own"] for each in told] if all(each["own"] is not None for each in told) else [],
        compute=compute,
        communication=communication,
        micro_batches=micro_batches,
        synchronising=synchronising,
    )


def _whole(told: list[dict[str, Any]]) -> int | None:
    """A window may be too short for two ranks to meet the same sample; the lengths tell."""
    reads = [each["reads"] for each in told]
    if any(read is None or read[0] < read[1] for read in reads):
        return None
    return int(reads[0][1])


def _costs(told: list[dict[str, Any]]) -> tuple[float | None, float | None, float, float]:
    """Of one micro-batch: computing, what synchronising adds; and micro-batches per update, and how many of them synchronise."""
    with_, without = [[each[w] for each in told if each[w] is not None] for w in ("synchronised", "alone")]  # fmt: skip
    measured = sum(each["measured"] for each in told)
    micro_batches = sum(each["backwards"] for each in told) / measured if measured else 0.0
    synchronising = sum(each["synchronising"] for each in told) / measured if measured else 0.0
    if len(with_) < len(told) or len(without) < len(told) or not synchronising:
        return None, None, micro_batches, synchronising
    whole, alone = sum(with_) / len(with_), sum(without) / len(without)
    return (
        alone / micro_batches,
        max(0.0, whole - alone) / synchronising,
        micro_batches,
        synchronising,
    )

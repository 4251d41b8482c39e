"""What `fallline measure ranks` answers with: what is wrong first, then what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fallline.instruments.frame import human_bytes, human_seconds
from fallline.instruments.ranks.judge import Overlap, no_sync_gain, stragglers
from fallline.instruments.ranks.machine import Machine
from fallline.instruments.ranks.talk import Talk

__all__ = ["Ranks", "Trained"]

_SHOWN = 6
_MICRO_BATCHES = (2, 4, 8)


@dataclass
class Trained:
    """A script's ranks, side by side."""

    updates: int
    ddp: bool
    seeds: list[dict[str, int]]
    overlap: Overlap | None
    whole: int | None  # samples of the dataset, where every rank reads all of them
    repeats: bool  # every epoch has the same order on some rank
    unequal_update: (
        int | None
    )  # the first update (from 0) after which parameters differ; None: never
    unequal: dict[str, list[int]]  # name → ranks that differ from rank 0
    compared: int  # updates after which parameters were compared
    own: list[float]  # seconds before the backward, by rank
    compute: float | None  # seconds per micro-batch, without communication
    communication: float | None  # what synchronising adds to that
    micro_batches: float  # per update, as the script does it
    synchronising: float  # of them

    @property
    def gains(self) -> dict[int, float]:
        if self.compute is None or self.communication is None:
            return {}
        return {k: no_sync_gain(self.compute, self.communication, k) for k in _MICRO_BATCHES}


@dataclass
class Ranks:
    """The ranks of a job, and what is wrong with them."""

    world: int
    machines: list[Machine]
    torchrun: str
    talk: Talk | None = None
    trained: Trained | None = None
    problems: list[str] = field(default_factory=list)
    silent: str = ""  # the rank that did not answer, in words
    partial: bool = False
    status: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        if self.trained is not None:
            found["trained"]["gains"] = {str(k): gain for k, gain in self.trained.gains.items()}
        return found

    def text(self) -> str:
        lines = [f"ranks: {self._verdict()}"]
        lines += [f"  {problem}" for problem in self.problems]
        if self.partial:
            lines.append("  partial: not everything was measured.")
        lines += ["", *self._machines()]
        if self.talk is not None and (self.talk.pings or self.talk.all_reduce):
            lines += ["", *self._talk(self.talk)]
        if self.trained is not None:
            lines += ["", *self._trained(self.trained)]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, "", "to start a job on this machine", f"  {self.torchrun}"])

    def _verdict(self) -> str:
        if self.silent:
            return self.silent
        if self.world == 1:
            return "alone: there are no other ranks to measure. Run it under torchrun (below)."
        count = len(self.problems)
        if count:
            return f"{self.world} ranks answer, and {count} thing{'s are' if count > 1 else ' is'} wrong"
        return f"{self.world} ranks answer, and nothing is wrong between them"

    def _machines(self) -> list[str]:
        lines = []
        for machine in self.machines:
            device = machine.device
            if device != "cpu" and machine.local_rank < len(machine.devices):
                device += f" {machine.devices[machine.local_rank]}"
            built = f"CUDA {machine.cuda}" if machine.cuda else "no CUDA"
            driver = f", driver {machine.driver}" if machine.driver else ""
            nccl = f", NCCL {machine.nccl}" if machine.nccl else ""
            lines.append(
                f"rank {machine.rank}: {machine.host}, {device}, torch {machine.torch} ({built}{driver}{nccl}), "
                f"{', '.join(machine.backends)}, {machine.threads} of {machine.cores} cores"
            )
        for name, value in (self.machines[0].settings if self.machines else {}).items():
            lines.append(f"  {name}={value}")
        return lines

    def _talk(self, talk: Talk) -> list[str]:
        lines = [f"over {talk.backend}"]
        if talk.pings:
            slowest = max(talk.pings, key=lambda ping: float(ping["seconds"]))
            lines.append(
                f"  every pair that was tried ({len(talk.pings)}) reaches each other; there and back takes at most "
                f"{human_seconds(slowest['seconds'])} (rank {slowest['a']} and rank {slowest['b']})"
            )
        lines += [
            f"  {human_seconds(one.seconds):>10}  all-reduce of {human_bytes(one.size)}: {human_bytes(one.bandwidth)}/s, "
            f"{human_bytes(one.bus_bandwidth)}/s on the bus"
            for one in talk.all_reduce
        ]
        if talk.work:
            times = ", ".join(f"rank {r} {human_seconds(s)}" for r, s in enumerate(talk.work))
            slow = stragglers(talk.work)
            lines.append(f"  the same work: {times}" + ("" if slow else "; nobody lags"))
        return lines

    def _trained(self, trained: Trained) -> list[str]:
        lines = [f"the script, {trained.updates} updates"]
        torch_seeds = [seeds.get("torch seed") for seeds in trained.seeds]
        lines.append(f"  torch's seed by rank: {', '.join(map(str, torch_seeds))}")
        if trained.overlap is not None:
            lines.append(
                f"  {trained.overlap.share:.0%} of {trained.overlap.samples} samples of the first epoch were read by several ranks"
            )
        if trained.unequal_update is None:
            lines.append(
                f"  parameters equal on all ranks after each of {trained.compared} updates"
            )
        else:
            names = list(trained.unequal.items())
            lines.append(
                f"  parameters differ after update {trained.unequal_update} (from 0): {len(names)}"
            )
            lines += [
                f"    {name} on rank {', '.join(map(str, ranks))}" for name, ranks in names[:_SHOWN]
            ]
        if trained.own:
            times = ", ".join(f"rank {r} {human_seconds(s)}" for r, s in enumerate(trained.own))
            lines.append(f"  data and forward, before ranks wait for each other: {times}")
        if trained.compute is not None and trained.communication is not None:
            whole = trained.compute + trained.communication
            lines.append(
                f"  a micro-batch computes {human_seconds(trained.compute)} and synchronising adds {human_seconds(trained.communication)} "
                f"({trained.communication / whole:.0%})"
            )
            gains = ", ".join(f"{gain:.2f}x with {k}" for k, gain in trained.gains.items())
            lines.append(
                f"  no_sync when accumulating would gain, (c+s)/(c+s/k): {gains} micro-batches"
            )
            if trained.micro_batches > 1.5:
                lines.append(
                    f"  now {trained.synchronising:.1f} of {trained.micro_batches:.1f} micro-batches of an update synchronise"
                )
        return lines

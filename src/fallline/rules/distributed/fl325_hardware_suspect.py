"""FL325: a rank computes the same numbers differently, or its memory changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule

__all__ = ["HardwareSuspect"]


@dataclass(frozen=True, slots=True)
class _Check:
    """What one rank saw in one check."""

    rank: int
    update: int
    at: Location
    differs: str = ""  # what came out differently the second time
    gap: float = 0.0
    noise: float | None = None  # between the second time and the third
    repeats: bool = False  # the second and the third are the same to the last bit
    weights: tuple[str, ...] = ()  # after the update before, and when they were used
    gradients: tuple[str, ...] = ()  # after the backward, and when they were used

    @property
    def exact(self) -> bool:
        return not self.differs


class HardwareSuspect(Rule):
    code = "FL325"
    name = "hardware-suspect"
    severity = Severity.ERROR
    yields_to = ()
    what = "A rank computes a micro-batch differently when it is run again, or finds other bits in its memory than it wrote (`fallline run --check-hardware 200`)."
    why = (
        "A processor or memory that is broken a little raises no error. One wrong bit in a gradient reaches every rank with the next all-reduce, "
        "and the loss shows it much later, or not at all."
    )
    instead = (
        "Take that machine out of the job and test it (`dcgmi diag -r 3`, a memory test). Go back to a checkpoint from before the update that is "
        "named. If the code itself does something else on this rank, the check compares code with code: make it the same on all ranks first."
    )
    wrong = (
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for update in range(40):
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # FL325
    if update == 29 and dist.get_rank() == 1:  # a bit flips in memory
        model.module.weight.data.view(torch.int32)[0, 3] ^= 1 << 20
    optimizer.step()
dist.destroy_process_group()
""",
    )
    right = (
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for update in range(40):
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )

    times = 100.0  # so many times the noise of repeats is not noise

    def check_series(self, run: Any) -> Iterator[Finding]:
        by_rank = {r.number: list(_checks(r.number, r.meta.get("hardware"))) for r in run.ranks}
        by_rank = {rank: checks for rank, checks in by_rank.items() if checks}
        told = False
        for rank, checks in by_rank.items():
            others = {r: c for r, c in by_rank.items() if r != rank}
            found = self._computed(checks, others) or _kept(checks, others)
            if found is not None:
                told = True
                yield self._told(*found, ranks=len(by_rank))
        odd = None if told else _odd_one(by_rank)
        if odd is not None:
            yield self._told(odd, "its weights are not those of the other ranks any more", 1)

    def _told(self, check: _Check, what: str, ranks: int) -> Finding:
        alone = "" if ranks == 1 else "; the other ranks show nothing of the kind"
        return self.finding(
            check.at,
            f"Rank {check.rank}, update {check.update}: {what}{alone}. Take this machine out of the job and test it, and go back to a checkpoint from before "
            "that update.",
            rank=check.rank,
            step=check.update,
            differs=check.differs,
            gap=check.gap,
            noise=check.noise,
        )

    def _computed(
        self, checks: list[_Check], others: Mapping[int, list[_Check]]
    ) -> tuple[_Check, str] | None:
        """The first check in which a micro-batch came out differently although it can be repeated."""
        again = "the same micro-batch, run again, gives different bits in"
        calm = others and all(c.exact for known in others.values() for c in known)
        first = next((c for c in checks if not c.exact), None)
        if first is None:
            return None
        if calm:  # code that does not repeat would not repeat on the others either
            return first, f"{again} {first.differs}"
        noise = max((c.noise or 0.0 for c in checks if not c.exact), default=0.0)
        repeated = any(c.exact for c in checks if c.update < first.update)
        if repeated and first.repeats:
            return first, f"{again} {first.differs}, and did not before"
        wild = next((c for c in checks if noise and c.gap > self.times * noise), None)
        return (wild, f"{again} {wild.differs}, far more than repeats differ") if wild else None


def _kept(checks: list[_Check], others: Mapping[int, list[_Check]]) -> tuple[_Check, str] | None:
    """The first check in which bits changed on this rank alone, between being written and being used."""
    for check in checks:
        alike = [c for known in others.values() for c in known if c.update == check.update]
        if not alike:
            continue
        if _changed(check.weights) and not any(_changed(c.weights) for c in alike):
            return check, "the weights are not those that the update before left in memory"
        if _changed(check.gradients) and not any(_changed(c.gradients) for c in alike):
            return check, "the gradients are not those that the backward pass left in memory"
    return None


def _odd_one(by_rank: Mapping[int, list[_Check]]) -> _Check | None:
    """The first check in which one rank's weights differ from those of all others, which were the same before."""
    if len(by_rank) < 3:
        return None  # of two that differ nobody knows which one is right: FL320
    used = [{c.update: c for c in checks if len(c.weights) == 2} for checks in by_rank.values()]
    together = False
    for update in sorted(set(used[0]).intersection(*used[1:])):
        checks = [known[update] for known in used]
        counts = Counter(c.weights[1] for c in checks)
        if len(counts) == 2 and together and counts.most_common()[-1][1] == 1:
            rare = counts.most_common()[-1][0]
            return next(c for c in checks if c.weights[1] == rare)
        together = together or len(counts) == 1
    return None


def _changed(pair: tuple[str, ...]) -> bool:
    return len(pair) == 2 and all(pair) and pair[0] != pair[1]


def _checks(rank: int, described: Any) -> Iterator[_Check]:
    """What is in the run folder was written by somebody: what does not look right is left out."""
    listed = described.get("checks") if isinstance(described, dict) else None
    for row in listed if isinstance(listed, list) else ():
        if not isinstance(row, dict) or not isinstance(row.get("update"), int):
            continue
        place = row.get("at")
        known = isinstance(place, list) and len(place) == 2
        gap, noise = row.get("gap"), row.get("noise")
        yield _Check(
            rank,
            row["update"],
            Location(str(place[0]), int(place[1])) if known else Location("", 1),  # type: ignore[index]
            str(row.get("differs") or "")[:200],
            float(gap) if isinstance(gap, int | float) else 0.0,
            float(noise) if isinstance(noise, int | float) else None,
            row.get("repeats") is True,
            _pair(row.get("weights")),
            _pair(row.get("gradients")),
        )


def _pair(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) and len(value) == 2 else ()

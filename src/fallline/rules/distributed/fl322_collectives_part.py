"""FL322: ranks do not issue the same collectives in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.runs.flight import parting

__all__ = ["CollectivesPart"]


class CollectivesPart(Rule):
    code = "FL322"
    name = "collectives-part"
    severity = Severity.ERROR
    what = "Ranks issue different sequences of collectives."
    why = "A collective is matched with the other ranks' next one, by order. If one rank issues a different one, both wait for ever, or the data of one is taken for that of the other."
    instead = "Let every rank make the same collective calls in the same order: put the branch on the rank around the data, not around the call."
    wrong = (
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(10):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if update == 5 and dist.get_rank() == 1:
        dist.barrier()  # FL322
dist.destroy_process_group()
""",
    )
    right = (
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(10):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if update == 5:
        dist.barrier()
dist.destroy_process_group()
""",
    )

    def check_series(self, run: Any) -> Iterator[Finding]:
        calls: dict[int, dict[str, list[tuple[int, str]]]] = {}
        for state in run.states.values():
            for met in state.met:
                by_name = calls.setdefault(met.number, {})
                by_name.setdefault(met.what, []).append((state.rank, met.at))
        for number in sorted(calls):
            by_name = calls[number]
            if len(by_name) > 1:
                yield self._finding(number, by_name)
                return
        parted = parting(run.flights)
        if parted:
            yield self._finding(*parted)

    def _finding(self, number: int, by_name: dict[str, list[tuple[int, str]]]) -> Finding:
        ordered = sorted(by_name.items(), key=lambda item: len(item[1]))
        said = [
            f"{_ranks(ranks)} {'calls' if len(ranks) == 1 else 'call'} {name} at {ranks[0][1]}"
            for name, ranks in ordered
        ]
        return self.finding(
            _location(ordered[0][1][0][1]),
            f"Collective number {number + 1} is not the same on all ranks: {', '.join(said[:-1])}, but {said[-1]}. Ranks that do not meet wait "
            "for ever",
            number=number,
            calls={name: [rank for rank, _ in ranks][:64] for name, ranks in ordered},
        )


def _ranks(ranks: list[tuple[int, str]]) -> str:
    numbers = [rank for rank, _ in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = ", ".join(map(str, numbers[:5]))
    return f"ranks {shown}{', ...' if len(numbers) > 5 else ''}"


def _location(shown: str) -> Location:
    path, _, line = shown.rpartition(":")
    return Location(path, int(line)) if line.isdigit() else Location(shown, 1)

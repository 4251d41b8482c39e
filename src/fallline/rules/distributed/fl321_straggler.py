"""FL321: one rank is slower than the others, update after update."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.distributed._specimen import RANKS
from fallline.runs.rank import PARTS, RankState
from fallline.show.numbers import seconds_text

__all__ = ["Straggler"]

_PARTS = {
    "data": "waiting for its data",
    "forward": "in its forward pass",
    "backward": "in its backward pass",
    "step": "in its optimizer step",
    "other": "in its own code between forward, backward and step",
}


class Straggler(Rule):
    code = "FL321"
    name = "straggler"
    severity = Severity.WARNING
    what = "One rank takes longer than the others, update after update."
    why = "All ranks meet once per update, so every update takes as long as the slowest rank: the others wait, and their time is lost."
    instead = (
        "Look at what that rank does in the part and on the line that are named: a slower disk or fewer loader workers (data), longer sequences or extra work "
        "on one rank (forward), a slower or throttled device (forward and backward). Give every rank the same amount of work."
    )
    wrong = (
        "import time\n\n"
        + RANKS
        + """\


class Features(torch.nn.Module):
    def forward(self, inputs):
        if dist.get_rank() == 1:
            time.sleep(0.02)  # FL321
        return inputs.tanh()


features = Features()
for update in range(60):
    inputs = features(torch.randn(16, 8))
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )
    right = (
        RANKS
        + """\
for update in range(60):
    inputs = torch.randn(16, 8).tanh()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )

    share = 0.2  # of an update, more than the other ranks take
    least = 0.005  # seconds: a crowded machine makes differences of a few milliseconds
    least_updates = 20

    def check_series(self, run: Any) -> Iterator[Finding]:
        states = [s for s in run.states.values() if s.updates >= self.least_updates and s.seconds]
        if len(states) < 2:
            return
        own = {s.rank: s.own for s in states}
        whole = statistics.median(_whole(s.seconds) for s in states)
        least = max(self.least, self.share * whole)
        late = sorted(
            max((self._excess(own, rank, part), rank, part) for part in own[rank]) for rank in own
        )
        late = [slow for slow in late if slow[0] >= least]
        if not late:
            return
        excess, rank, part = late[-1]
        line = _line(states, rank, excess / whole)
        yield self.finding(
            line or _place(run, rank, part),
            f"Rank {rank} is {seconds_text(excess)} slower than the other ranks {_PARTS[part]}{_shown(line)}, in each update of {seconds_text(whole)}, "
            f"and the others wait for it{_too(late)}",
            rank=rank,
            part=part,
            seconds=excess,
            update_seconds=whole,
            threshold=self.share,
            late=[r for _, r, _ in reversed(late)][:64],
            ranks={str(r): parts.get(part) for r, parts in list(own.items())[:64]},
        )

    @staticmethod
    def _excess(own: dict[int, dict[str, float]], rank: int, part: str) -> float:
        """Seconds more than the others. A rank whose other parts are shorter for it only divides its time differently."""
        others = [parts for other, parts in own.items() if other != rank and part in parts]
        if not others:
            return 0.0
        in_part = own[rank][part] - statistics.median(parts[part] for parts in others)
        in_all = sum(own[rank].values()) - statistics.median(
            sum(parts.values()) for parts in others
        )
        return min(in_part, in_all)


def _line(states: list[RankState], rank: int, excess: float) -> Location | None:
    """Where it spends the share of an update that the others do not: None where no line has half of it, or nobody has looked."""
    spent = {s.rank: {line.at: line.share for line in s.lines} for s in states}
    others = [lines for other, lines in spent.items() if other != rank and lines]
    if not others:
        return None
    more = {
        at: share - statistics.median(lines.get(at, 0.0) for lines in others)
        for at, share in spent[rank].items()
    }
    at = max(more, key=lambda at: more[at], default=None)
    return at if at is not None and more[at] >= excess / 2 else None


def _place(run: Any, rank: int, part: str) -> Location:
    """The line of the loop that the part begins or ends at."""
    track = next((t for t in (*run.of_rank(rank), *run.tracks) if t.rows), None)
    if track is None:
        found: Location | None = run.states[rank].at
    elif part == "data":
        found = track.rows[-1].batch_at or track.loss_at
    else:
        found = track.at if part == "step" else track.loss_at
    return found or Location("", 1)


def _shown(line: Location | None) -> str:
    if line is None:
        return ""
    return f", most of it at {line}" + (f" in {line.function}()" if line.function else "")


def _too(late: list[tuple[float, int, str]]) -> str:
    """The other ranks that are too slow."""
    ranks = sorted(rank for _, rank, _ in late[:-1])
    if not ranks:
        return ""
    if len(ranks) > 6:
        return f" ({len(ranks)} more ranks are slow as well)"
    named = ", ".join(map(str, ranks))
    return (
        f" (rank {named} is slow as well)"
        if len(ranks) == 1
        else f" (ranks {named} are slow as well)"
    )


def _whole(seconds: dict[str, float]) -> float:
    return sum(seconds.get(part, 0.0) for part in PARTS)

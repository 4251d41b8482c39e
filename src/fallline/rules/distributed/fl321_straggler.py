"""FL321: one rank is slower than the others, update after update."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.distributed._specimen import RANKS
from fallline.runs.rank import PARTS
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
        "Look at what that rank does in the part that is named: a slower disk or fewer loader workers (data), longer sequences or extra work "
        "on one rank (forward), a slower or throttled device (forward and backward). Give every rank the same amount of work."
    )
    wrong = (
        "import time\n\n"
        + RANKS
        + """\


class Features(torch.nn.Module):
    def forward(self, inputs):
        if dist.get_rank() == 1:
            time.sleep(0.02)
        return inputs.tanh()


features = Features()
for update in range(60):
    inputs = features(torch.randn(16, 8))
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()  # FL321
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
        own = {s.rank: _own(s.seconds) for s in states}
        whole = statistics.median(_whole(s.seconds) for s in states)
        worst = max(
            (self._excess(own, rank, part), rank, part) for rank in own for part in own[rank]
        )
        excess, rank, part = worst
        if excess < max(self.least, self.share * whole):
            return
        yield self.finding(
            self._place(run, rank, part),
            f"Rank {rank} is {seconds_text(excess)} slower than the other ranks {_PARTS[part]}, in each update of {seconds_text(whole)}, and the "
            "others wait for it",
            rank=rank,
            part=part,
            seconds=excess,
            update_seconds=whole,
            threshold=self.share,
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

    @staticmethod
    def _place(run: Any, rank: int, part: str) -> Location:
        track = next((t for t in (*run.of_rank(rank), *run.tracks) if t.rows), None)
        if track is None:
            found: Location | None = run.states[rank].at
        else:
            found = track.at if part == "step" else track.loss_at
        return found or Location("", 1)


def _own(seconds: dict[str, float]) -> dict[str, float]:
    """What a rank does itself. Without knowing how long it waits for others, two of the parts say nothing."""
    found: dict[str, float] = {p: seconds[p] for p in ("data", "forward", "step") if p in seconds}
    for part, waited in (("backward", "wait"), ("other", "meet")):
        if part in seconds and waited in seconds:
            found[part] = max(0.0, seconds[part] - seconds[waited])
    return found


def _whole(seconds: dict[str, float]) -> float:
    return sum(seconds.get(part, 0.0) for part in PARTS)

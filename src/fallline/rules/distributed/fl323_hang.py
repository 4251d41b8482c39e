"""FL323: ranks wait in a collective for one that is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.distributed._specimen import RANKS, RANKS_TRAIN
from fallline.runs.flight import flight_lines
from fallline.runs.stall import STALLED, sentences, stall_of

__all__ = ["Hang"]


class Hang(Rule):
    code = "FL323"
    name = "hang"
    severity = Severity.ERROR
    yields_to = ("FL322", "FL324")
    what = "Ranks wait in a collective for a rank that is elsewhere."
    why = (
        "A collective returns when every rank has called it. A rank that took a different branch, or is stuck, keeps all of them waiting until a "
        "timeout of minutes ends the run, and the error comes from a rank that waited and does not name the missing one."
    )
    instead = (
        "Look at the line where the odd rank is. Branches around training steps must be decided alike on all ranks: by the update's number, or by a "
        "value that was broadcast."
    )
    wrong = (
        "import time\n\n"
        + RANKS
        + """\


def evaluate():
    time.sleep(3600)  # FL323


for update in range(60):
    if update == 30 and dist.get_rank() == 1:
        evaluate()
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )
    right = (RANKS + RANKS_TRAIN,)

    stalled = STALLED  # seconds without an update on any rank

    def check_series(self, run: Any) -> Iterator[Finding]:
        stall = stall_of(run.states, self.stalled)
        if stall is None or not stall.waiting:
            return
        odd = [*stall.elsewhere, *stall.silent]
        if not odd and len(stall.waiting) > 1:  # all wait, but not for each other
            odd = min(stall.waiting.values(), key=len)
        if not odd:
            return
        yield self.finding(
            odd[0].at or Location("", 1),
            f"No rank has made an update for {stall.idle:.0f} s. {' '.join(sentences(stall))}{_recorded(run)}",
            seconds=stall.idle,
            ranks=[state.rank for state in odd][:64],
            updates=odd[0].updates,
            threshold=self.stalled,
        )


def _recorded(run: Any) -> str:
    """What torch's flight recorder says, where its dumps are."""
    said = flight_lines(run.flights)
    return f" torch's flight recorder: {' '.join(said)}" if said else ""

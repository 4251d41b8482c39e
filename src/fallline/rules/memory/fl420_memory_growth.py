"""FL420: live tensor memory grows update after update."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["MemoryGrowth"]


class MemoryGrowth(Rule):
    code = "FL420"
    name = "memory-growth"
    severity = Severity.ERROR
    yields_to = ("FL401",)  # which knows the statement that keeps them
    what = "Autograd graphs, or the bytes of live tensors, grow with every update and are never released."
    why = (
        "A loss or an output that is kept holds its whole graph: a few bytes per node at first, and the run dies out of memory hours "
        "later. A history of plain numbers grows too, but too little to matter."
    )
    instead = "Keep `loss.item()` or `loss.detach()`, and `output.detach()`, instead of the tensor with its graph."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = {}
for update in range(120):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL420
    kept[update] = loss
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = {}
for update in range(120):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept[update] = loss.detach()
""",
    )

    least_updates = 50
    graphs_per_update = 0.5
    steady = 0.95  # share of the updates in which the count did not fall
    growth = 0.5  # of the memory at the start, for bytes on an accelerator
    least_bytes = 64 << 20

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            rows = track.rows[-2000:]
            found = self._graphs(track, rows) or self._bytes(
                track, rows, track.facts.get("device") == "cuda"
            )
            if found is not None:
                yield found

    def _graphs(self, track: Any, rows: list[Any]) -> Finding | None:
        counts = [(r.index, r.graphs) for r in rows if r.graphs is not None]
        fall = _last_fall(counts)
        released = max((count for _, count in counts[:fall]), default=0)
        counts = counts[fall:]
        # what was released once at this height will be released again
        if not self._grows(counts) or counts[-1][1] < 2 * released:
            return None
        updates = counts[-1][0] - counts[0][0]
        grown = counts[-1][1] - counts[0][1]
        if grown < self.graphs_per_update * updates:
            return None
        return self.finding(
            track.at,
            f"{counts[-1][1]} autograd graphs of past updates are still alive, {grown / updates:.2g} more with every update, so memory grows: "
            "something keeps a loss or an output. Keep loss.item() or output.detach() instead.",
            step=counts[-1][0],
            graphs=counts[-1][1],
            per_update=grown / updates,
            threshold=self.graphs_per_update,
            memory=rows[-1].memory,
            optimizer=track.optimizer,
            rank=track.rank,
        )

    def _bytes(self, track: Any, rows: list[Any], accelerator: bool) -> Finding | None:
        """Only where bytes are those of live tensors: a process also holds caches, loaders and their buffers."""
        sizes = [(r.index, r.memory) for r in rows if r.memory is not None][5:]
        if not accelerator or not self._grows(sizes):
            return None
        grown, updates = sizes[-1][1] - sizes[0][1], sizes[-1][0] - sizes[0][0]
        half = sizes[len(sizes) // 2][1] - sizes[0][1]
        if (
            grown < max(self.least_bytes, self.growth * sizes[0][1])
            or not 0.3 * grown < half < 0.7 * grown
        ):
            return None
        return self.finding(
            track.at,
            f"Live tensors grew by {grown / 2**20:.0f} MiB over {updates} updates, steadily, and nothing releases them. Look for a list that grows, or run `fallline measure memory`.",
            step=sizes[-1][0],
            bytes_per_update=grown / updates,
            memory=sizes[-1][1],
            threshold=self.growth,
            optimizer=track.optimizer,
            rank=track.rank,
        )

    def _grows(self, values: list[tuple[int, int]]) -> bool:
        if len(values) < self.least_updates or values[-1][0] - values[0][0] < self.least_updates:
            return False
        steps = [b[1] >= a[1] for a, b in pairwise(values)]
        return sum(steps) >= self.steady * len(steps)


def _last_fall(counts: list[tuple[int, int]]) -> int:
    """Where the count last dropped to less than half: what was kept until then has been released."""
    for position in range(len(counts) - 1, 0, -1):
        if counts[position][1] * 2 < counts[position - 1][1]:
            return position
    return 0

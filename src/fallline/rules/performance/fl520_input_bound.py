"""FL520: the step waits for data most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["InputBound"]


class InputBound(Rule):
    code = "FL520"
    name = "input-bound"
    severity = Severity.WARNING
    what = "More than half of the time between updates is spent waiting for the data loader."
    why = "The model is idle while it waits. A faster device or a smaller model shortens only the other part of the time (measured: if reading takes 4 times as long as a step, a device twice as fast saves less than a quarter)."
    instead = "Give the loader workers (`num_workers`, `persistent_workers=True`, `pin_memory=True`), cache or pre-process the data, or move augmentation to the device."
    wrong = (
        """\
import time

import torch


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.ones(8) * index / 240


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs in torch.utils.data.DataLoader(Slow(), batch_size=4):  # FL520
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs in torch.utils.data.DataLoader(torch.randn(240, 8), batch_size=4):
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    share = 0.5  # of the time between updates
    least_seconds = 0.005  # per update: below, nobody waits
    least_updates = 50

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            # the first updates pay for starting workers and for compiling
            rows = [r for r in track.rows[5:][-1000:] if "data" in r.seconds and len(r.seconds) > 1]
            if len(rows) < self.least_updates:
                continue
            # of a typical update, as in the report
            typical = track.typical()
            wait, total = typical.get("data", 0.0), sum(typical.values())
            if wait < self.share * total or wait < self.least_seconds:
                continue
            workers = _workers(run, track)
            yield self.finding(
                track.batch_at,
                f"{wait / total:.0%} of the time between updates is spent waiting for data: {1000 * wait:.1f} of {1000 * total:.1f} ms. {_advice(workers)}",
                step=rows[-1].index,
                share=wait / total,
                threshold=self.share,
                data_ms=1000 * wait,
                update_ms=1000 * total,
                workers=workers,
                optimizer=track.optimizer,
                rank=track.rank,
            )


def _workers(run: Any, track: Any) -> int | None:
    """Of the loader whose batches this loop waits for."""
    at = track.batch_at
    meta: dict[str, Any] = next((rank.meta for rank in run.ranks if rank.number == track.rank), {})
    for name, known in meta.items():
        if name.startswith("loader#") and (known.get("path"), known.get("line")) == (
            at.path,
            at.line,
        ):
            workers = known.get("workers")
            return workers if isinstance(workers, int) else None
    return None


def _advice(workers: int | None) -> str:
    if workers:
        return (
            f"The loader has {workers} worker{'s' * (workers > 1)}, and they cannot keep up: add more while there are idle cores, or do the slow "
            "part of loading once and cache it."
        )
    if workers == 0:
        return "The loader reads in the training process: set `num_workers`, or do the slow part of loading once and cache it."
    return "Without workers, set `num_workers`; with workers, add more, or do the slow part of loading once and cache it."

"""FL520: the step waits for data most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median

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
for inputs in torch.utils.data.DataLoader(Slow(), batch_size=4):
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL520
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
            waits = [r.seconds["data"] for r in rows]
            totals = [sum(r.seconds.values()) for r in rows]
            usual = median([w / t for w, t in zip(waits, totals, strict=True) if t > 0] or [0.0])
            if usual < self.share or median(waits) < self.least_seconds:
                continue
            # said as a share of the whole, as in the report: an epoch's first batch counts as much as it takes
            wait, total = sum(waits) / len(rows), sum(totals) / len(rows)
            share = wait / total
            yield self.finding(
                track.at,
                f"{share:.0%} of the time between updates is spent waiting for data: {1000 * wait:.1f} of {1000 * total:.1f} ms. "
                "Without workers, set `num_workers`; with workers, add more, or do the slow part of loading once and cache it.",
                step=rows[-1].index,
                share=share,
                threshold=self.share,
                data_ms=1000 * wait,
                update_ms=1000 * total,
                optimizer=track.optimizer,
                rank=track.rank,
            )

"""FL501: loss.item() on every step of a loop that runs on a GPU."""

from __future__ import annotations

import time
import warnings

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

STEPS = 50


@experiment(
    "FL501",
    claim="Fetching a value on every step lets the queue run empty each time: the device idles until Python has "
    "queued new work.",
    needs="cuda",
)
def sync_every_step() -> Measured:
    wrong, right = _train(fetch_every=1), _train(fetch_every=STEPS)
    return Measured(
        sides={
            "wrong": {
                "waits for the device in 50 steps": wrong.waits,
                "steps still queued when Python is done": wrong.still_queued,
                "microseconds idle between steps": wrong.idle,
                "milliseconds a step": wrong.step,
            },
            "right": {
                "waits for the device in 50 steps": right.waits,
                "steps still queued when Python is done": right.still_queued,
                "microseconds idle between steps": right.idle,
                "milliseconds a step": right.step,
            },
        },
        conclusion=f"with .item() on every step Python waits {wrong.waits} times in {STEPS} steps and the device idles "
        f"{wrong.idle:.0f} microseconds before each; fetched once, Python runs {right.still_queued} steps ahead and the "
        f"device idles {right.idle:.0f}; a step takes {wrong.step / right.step:.2f} times as long",
        holds={
            "one wait for each fetch": (wrong.waits, right.waits) == (STEPS, 1),
            "with a fetch on every step nothing is ever queued ahead": wrong.still_queued == 0,
            "without, Python runs ahead of the device": right.still_queued > 1,
            "the device idles longer between steps": wrong.idle > 2 * right.idle,
        },
    )


class _train:
    """Steps that take the device longer than Python; events in its queue say when it worked and when it waited."""

    def __init__(self, *, fetch_every: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(8192, 1024, device="cuda")
        self.fetch_every = fetch_every
        self.waits = self._count_waits()
        begins = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS)]
        start = time.perf_counter()
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True), start=1):
            begin.record()
            loss = self._step()
            end.record()
            if number == STEPS:  # before a last fetch would wait for all of them
                self.still_queued = sum(not event.query() for event in ends[:-1])
            self._fetch(loss, number)
        torch.cuda.synchronize()
        self.step = 1000 * (time.perf_counter() - start) / STEPS
        gaps = [end.elapsed_time(begin) for end, begin in zip(ends, begins[1:], strict=False)]
        self.idle = 1000 * sorted(gaps)[len(gaps) // 2]

    def _count_waits(self) -> int:
        """torch itself says when a call waits for the device; these steps also warm up."""
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for number in range(1, STEPS + 1):
                self._fetch(self._step(), number)
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    def _step(self) -> Tensor:
        loss: Tensor = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _fetch(self, loss: Tensor, number: int) -> None:
        if number % self.fetch_every == 0:
            loss.item()

"""FL503: a host clock around CUDA work."""

from __future__ import annotations

import time

import torch

from fallline.proof.experiment import Measured, experiment

PRODUCTS, SIZE = 20, 4096


@experiment(
    "FL503",
    claim="Without a synchronisation a host clock measures how fast kernels are queued, not how long they run.",
    needs="cuda",
)
def timing_unsynchronised() -> Measured:
    _time(synchronise=True)  # the first products choose their kernels
    wrong, right = _time(synchronise=False), _time(synchronise=True)
    return Measured(
        sides={
            "wrong": {
                "milliseconds by time.perf_counter": wrong.clock,
                "milliseconds the next line waits": wrong.next_line,
                "milliseconds by the device's own clock": wrong.device,
            },
            "right": {
                "milliseconds by time.perf_counter": right.clock,
                "milliseconds the next line waits": right.next_line,
                "milliseconds by the device's own clock": right.device,
            },
        },
        conclusion=f"{PRODUCTS} products of {SIZE} x {SIZE} take the device {right.device:.1f} ms; the clock says {wrong.clock:.2f} ms "
        f"without torch.cuda.synchronize() and {right.clock:.1f} ms with it",
        holds={
            "unsynchronised, the clock sees less than a tenth": wrong.clock < wrong.device / 10,
            "the time shows up at the next line that waits": wrong.next_line > wrong.device / 2,
            "synchronised, clock and device agree": abs(right.clock / right.device - 1) < 0.1,
        },
    )


class _time:
    def __init__(self, *, synchronise: bool) -> None:
        torch.manual_seed(0)
        x = torch.randn(SIZE, SIZE, device="cuda")
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(PRODUCTS):
            y = x @ x
        end.record()
        if synchronise:
            torch.cuda.synchronize()
        stop = time.perf_counter()
        y[0, 0].item()  # an innocent line that needs a value
        self.next_line = 1000 * (time.perf_counter() - stop)
        self.clock = 1000 * (stop - start)
        self.device = begin.elapsed_time(end)

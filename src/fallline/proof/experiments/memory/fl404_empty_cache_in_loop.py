"""FL404: torch.cuda.empty_cache() on every iteration."""

from __future__ import annotations

import time

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment

WARM_UP, ITERATIONS = 5, 40


@experiment(
    "FL404",
    claim="Emptying the cache on every iteration lowers no peak: each call waits for the device, and the next "
    "iteration asks the driver for the same memory again.",
    needs="cuda",
)
def empty_cache_in_loop() -> Measured:
    wrong, right = _train(empty=True), _train(empty=False)
    waited, waits_anyway = _device_is_done_after(empty=True), _device_is_done_after(empty=False)
    return Measured(
        sides={
            "wrong": {
                "driver allocations in 40 iterations": wrong.driver_allocations,
                "peak bytes in use": wrong.peak,
                "milliseconds an iteration": 1000 * wrong.seconds / ITERATIONS,
                "the device is idle when the call returns": waited,
            },
            "right": {
                "driver allocations in 40 iterations": right.driver_allocations,
                "peak bytes in use": right.peak,
                "milliseconds an iteration": 1000 * right.seconds / ITERATIONS,
                "the device is idle when the call returns": waits_anyway,
            },
        },
        conclusion=f"{ITERATIONS} iterations ask the driver for memory {wrong.driver_allocations} times with empty_cache() and "
        f"{right.driver_allocations} times without, for the same peak, and take "
        f"{wrong.seconds / right.seconds:.1f} times as long",
        holds={
            "every iteration asks the driver again": wrong.driver_allocations >= ITERATIONS,
            "the cache alone asks it for nothing": right.driver_allocations == 0,
            "the peak is the same": wrong.peak == right.peak,
            "empty_cache() waits for the device": waited and not waits_anyway,
            "the iterations get slower": wrong.seconds > 1.1 * right.seconds,
        },
    )


class _train:
    """Iterations of a small network after a warm-up that fills the cache."""

    def __init__(self, *, empty: bool) -> None:
        torch.manual_seed(0)
        torch.cuda.empty_cache()
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(16384, 256, device="cuda")  # activations of 16 MiB have blocks of their own
        for iteration in range(WARM_UP + ITERATIONS):
            if iteration == WARM_UP:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before, start = _driver_allocations(), time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if empty:
                torch.cuda.empty_cache()
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - start
        self.driver_allocations = _driver_allocations() - before
        self.peak = int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def _driver_allocations() -> int:
    return int(torch.cuda.memory_stats()["num_device_alloc"])


def _device_is_done_after(*, empty: bool) -> bool:
    """Queue a long piece of work and go on: is it finished by the next line?"""
    unused = torch.empty(64 << 20, device="cuda")
    del unused  # something for the cache to give back
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
    work = torch.cuda.Event()
    work.record()
    if empty:
        torch.cuda.empty_cache()
    done = work.query()
    torch.cuda.synchronize()
    return bool(done)

"""The tools that benchmarks/watch.py compares with, each as a switch: on, off."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

Switch = tuple[Callable[[], None], Callable[[], None]]  # on, off
Tool = Callable[[Any], contextlib.AbstractContextManager[Switch]]


@contextlib.contextmanager
def anomaly(job: Any) -> Iterator[Switch]:
    yield (
        lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.autograd.set_detect_anomaly(False),
    )


@contextlib.contextmanager
def wandb_watch(job: Any) -> Iterator[Switch]:
    import wandb

    os.environ["WANDB_SILENT"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(mode="offline", dir=folder, project="cost")

        def on() -> None:
            run.watch(job.model, log="all", log_freq=1)
            job.after_backward = lambda step, loss: run.log({"loss": loss.item()})

        def off() -> None:
            run.unwatch(job.model)
            job.after_backward = None

        yield on, off
        run.finish()


@contextlib.contextmanager
def tensorboard_histograms(job: Any) -> Iterator[Switch]:
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)

        def log(step: int, loss: torch.Tensor) -> None:
            writer.add_scalar("loss", loss.item(), step)
            for name, p in job.model.named_parameters():
                writer.add_histogram(name, p, step)
                writer.add_histogram(f"{name}.grad", p.grad, step)

        yield (
            lambda: setattr(job, "after_backward", log),
            lambda: setattr(job, "after_backward", None),
        )
        writer.close()


@contextlib.contextmanager
def hf_overflow(job: Any) -> Iterator[Switch]:
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {id(m): dict(m._forward_hooks) for m in job.model.modules()}

    def on() -> None:
        DebugUnderflowOverflow(job.model)

    def off() -> None:
        for m in job.model.modules():
            m._forward_hooks.clear()
            m._forward_hooks.update(before[id(m)])

    yield on, off


@contextlib.contextmanager
def pulsegrad_watch(job: Any) -> Iterator[Switch]:
    """One session for all watched blocks: it is bound to a twin of the model, which takes the bare one's place."""
    import pulsegrad

    bare, twin = (job.model, job.optimizer), job.twin()

    def use(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        job.model, job.optimizer = model, optimizer

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        pulsegrad.watch(twin.model, twin.optimizer, run_dir=Path(folder)),
    ):
        yield lambda: use(twin.model, twin.optimizer), lambda: use(*bare)


@contextlib.contextmanager
def gradsnitch_watch(job: Any) -> Iterator[Switch]:
    import gradsnitch

    monitor = gradsnitch.watch(job.model, job.optimizer)

    def log(step: int, loss: torch.Tensor) -> None:
        monitor.log(step, loss.item())

    yield lambda: setattr(job, "after_backward", log), lambda: setattr(job, "after_backward", None)


PEERS: dict[str, Tool] = {
    "pulsegrad watch": pulsegrad_watch,
    "gradsnitch, log each step": gradsnitch_watch,
    "HF DebugUnderflowOverflow": hf_overflow,
    "torch detect_anomaly": anomaly,
    'wandb.watch(log="all", log_freq=1), offline': wandb_watch,
    "TensorBoard histograms each step": tensorboard_histograms,
}

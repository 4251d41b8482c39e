"""FL130: a schedule's length counts something else than its steps: micro-batches, batches before they are split over processes, epochs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fallline.events import Batch, Epoch, EpochEnd, Scheduler, SchedulerStep, Step, Trace
from fallline.finding import Finding, Severity
from fallline.flow.calls import same
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._schedules import (
    batches_in_lightning,
    before_the_split,
    counted_before_the_split,
    every_epoch_in_lightning,
    expanded,
    in_micro_batches,
    prepared,
    schedules,
    target_of,
    times_the_window,
    window_of_one,
)
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ScheduleLengthWrong"]

# These last only for the beginning, as a warmup does; another one or a constant rate follows.
_BEFORE_ANOTHER = {"LinearLR", "ConstantLR"}


class ScheduleLengthWrong(Rule):
    code = "FL130"
    name = "schedule-length-wrong"
    severity = Severity.WARNING
    yields_to = ("FL108",)
    yields_within = "trace"
    what = (
        "A learning-rate schedule is as long as the number of batches, but advances once per accumulation window, once per epoch, or once per batch of one of several processes; "
        "or it is as long as the number of epochs and advances with every batch."
    )
    why = (
        "A schedule that is k times too long never reaches its end: with accumulation over 4 micro-batches a cosine ends the run after a quarter of "
        "its length, near its highest rate instead of at 0, and warmup takes four times as many samples. A cosine over 10 epochs that advances with every batch "
        "is at 0 after ten batches, and then goes up and down again, many times an epoch."
    )
    instead = (
        "Count the schedule's length in updates:\n\n"
        "```python\nupdates = math.ceil(len(loader) / accumulation_steps) * epochs\n"
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)\n```"
    )
    facts = ("scheduler-counts-updates",)
    tokens = (
        b"T_max",
        b"CosineAnnealingLR",
        b"OneCycleLR",
        b"num_training_steps",
        b"PolynomialLR",
        b"_schedule_with",
        b"warmup",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        steps = trace.of(SchedulerStep)
        for scheduler in dict.fromkeys(e.scheduler for e in steps):
            known = trace.object(Scheduler, scheduler)
            mine = [e for e in steps if e.scheduler == scheduler]
            if known is None or any(e.explicit for e in mine):
                continue
            if known.in_epochs and (often := _with_every_batch(trace, mine)):
                yield self.finding(
                    often,
                    "The schedule is as long as the number of epochs, but advances with every batch, so it has run its course after that many batches. "
                    "Call scheduler.step() once per epoch, or make the length epochs times batches",
                )
            elif known.in_batches and all(_after_an_epoch(trace, e) for e in mine):
                yield self.finding(
                    mine[0],
                    "The schedule's length counts batches, but it advances once per epoch, so the rate hardly leaves its beginning. "
                    "Call scheduler.step() after every optimizer.step()",
                )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        accelerated = prepared(module)
        for product in times_the_window(module):
            yield self.finding(
                module.location(product),
                f"Accelerate advances the schedule once per update, not once per micro-batch, so a schedule of `{module.segment(product)}` steps is too long and the run ends "
                "near its highest rate. Leave the accumulation steps out",
            )
        for call, length in schedules(module):
            spelled = expanded(module, length)
            if (
                target_of(module, call) in accelerated
            ):  # Accelerate's schedulers count by themselves
                if counted_before_the_split(module, call, length, accelerated):
                    yield self.finding(
                        module.location(call),
                        f"The schedule's length `{module.segment(length)}` counts the batches of the loader before prepare() splits it over the processes, and is multiplied by their number, "
                        "so with several processes the run ends long before the schedule does. Divide the number of batches by `num_processes` first",
                        severity=Severity.INFO,
                    )
                continue
            if in_micro_batches(module, call, spelled):
                yield self.finding(
                    module.location(call),
                    f"The schedule's length `{module.segment(length)}` counts batches, but the scheduler advances once per accumulation window, so the run ends "
                    "long before the schedule does. Divide the length by the number of accumulation steps",
                    severity=Severity.INFO if window_of_one(module, call) else None,
                )
            elif before_the_split(module, spelled):
                yield self.finding(
                    module.location(call),
                    f"The schedule's length `{module.segment(length)}` counts the batches of the whole dataset, but each process sees only its share of them, "
                    "so the run ends long before the schedule does. Use the length of this process's loader",
                )
        for call in every_epoch_in_lightning(module):
            yield self.finding(
                module.location(call),
                "The schedule's length counts updates, but Lightning advances a scheduler once per epoch unless told otherwise, so the rate hardly leaves its beginning. "
                'Return `{"scheduler": ..., "interval": "step"}` beside the optimizer',
            )
        for call in batches_in_lightning(module):
            yield self.finding(
                module.location(call),
                "The schedule's length counts batches, but Lightning advances it once per update, and the Trainer accumulates several batches for each, so the run ends "
                "long before the schedule does. Use `self.trainer.estimated_stepping_batches`",
            )
        yield from self._warmup_twice(module)

    def _warmup_twice(self, module: Module) -> Iterator[Finding]:
        """`n = min(step, end - warmup)` and then `n - warmup`: the schedule stops short of its end by a warmup."""
        for statement in module.all(ast.Assign):
            match statement:
                case ast.Assign(
                    [ast.Name(name)],
                    ast.Call(ast.Name("min"), [_, ast.BinOp(_, ast.Sub(), warmup)]),
                ):
                    if "warmup" not in module.segment(warmup):
                        continue
                case _:
                    continue
            for later in module.all(ast.BinOp):
                match later:
                    case ast.BinOp(ast.Name(used), ast.Sub(), again) if used == name and same(
                        again, warmup
                    ):
                        if (
                            module.scope(later) is module.scope(statement)
                            and later.lineno > statement.lineno
                        ):
                            yield self.finding(
                                module.location(statement),
                                "The step counter is capped at the end minus the warmup, and the warmup is subtracted from it again below, so the "
                                "schedule never reaches its end. Remove one of them",
                            )
                            break

    least_updates = 8
    near = 0.05
    many = 4

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            rank = next((r for r in run.ranks if r.number == track.rank), None)
            if rank is None or rank.status not in {"finished", "exit 0"}:
                continue
            updates = int(track.totals.get("updates", len(track.rows)))
            from statistics import median  # for start-up: only a run needs it

            window = median([row.micro_batches for row in track.rows])
            for entry in rank.meta.get("schedules") or ():
                length = entry.get("length")
                if entry.get("optimizer") != track.optimizer or not length:
                    continue
                at = Location(entry["path"], entry["line"], function=entry.get("function", ""))
                if window < 2 and (said := self._in_other_units(entry, updates, length)):
                    evidence = {"length": length, "optimizer": track.optimizer}
                    yield self.finding(at, said, **evidence, rank=track.rank)
                if window < 2 or entry.get("per") != "batch":
                    continue
                if updates >= self.least_updates and abs(updates * window / length - 1) < self.near:
                    yield self.finding(
                        at,
                        f"The schedule is {length:,} steps long, but the run made only {updates:,} updates of {window:g} micro-batches each, so it ended long before the "
                        f"schedule did. The length probably counts micro-batches: if so, divide it by {window:g}",
                        step=updates - 1,
                        length=length,
                        micro_batches=window,
                        optimizer=track.optimizer,
                        rank=track.rank,
                    )

    def _in_other_units(self, entry: dict[str, Any], updates: int, length: int) -> str | None:
        if entry.get("often") and entry.get("type") not in _BEFORE_ANOTHER:
            if updates > self.many * length:
                return (
                    f"The schedule is {length:,} steps long and advances with every batch, and the run made {updates:,} updates: it had run its course after "
                    f"{length / updates:.0%} of them. If its length counts epochs, call scheduler.step() once per epoch"
                )
        if entry.get("per") == "epoch" and length > self.many:
            if abs(updates / length - 1) < self.near:
                return (
                    f"The schedule is {length:,} steps long, as many as the run made updates, but it advances once per epoch, so the rate hardly left its beginning. "
                    "Call scheduler.step() after every optimizer.step()"
                )
        return None

    wrong = (
        SETUP
        + """
accumulation_steps, epochs = 2, 2
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader) * epochs)  # FL130
for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
        """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, loss_fn, args):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = len(dataset) // args.batch_size * args.epochs
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)  # FL130
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
""",
        SETUP
        + """

def train(model, loader, optimizer, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        scheduler.step()  # FL130


epochs = 8
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for epoch in range(epochs):
    train(model, loader, optimizer, scheduler)
""",
        SETUP
        + """
epochs = 4
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=len(loader))
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    scheduler.step()  # FL130
""",
        """\
import lightning
import torch
from torch import nn


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=self.trainer.estimated_stepping_batches)  # FL130
        return [optimizer], [schedule]
""",
    )
    right = (
        SETUP
        + """
accumulation_steps, epochs = 2, 2
updates = len(loader) // accumulation_steps * epochs
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
        SETUP
        + """
epochs = 2
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader) * epochs)
for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if (i + 1) % 10 == 0:
            print(scheduler.get_last_lr())
""",
        SETUP
        + """
epochs = 8
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for epoch in range(1, epochs + 1):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if i + 1 == len(loader):
            scheduler.step()
""",
        """\
import lightning
import torch
from torch import nn


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
""",
    )


def _with_every_batch(trace: Trace, steps: list[SchedulerStep]) -> SchedulerStep | None:
    """The first that comes again before the epoch is over."""
    for first, second in pairwise(e for e in steps if e.per == "batch"):
        if first.at == second.at and not trace.between(first, second).of(Epoch, EpochEnd):
            return first
    return None


def _after_an_epoch(trace: Trace, step: SchedulerStep) -> bool:
    """A loader was gone over, batch by batch, right before."""
    before = trace.before(step)
    last = before.of(Epoch, EpochEnd, Batch, SchedulerStep).first
    return step.per == "epoch" and isinstance(last, EpochEnd) and bool(before.of(Step))

"""The engine on a CPU, side by side with a hand-written loop, Fabric, Accelerate and Lightning: is it exact, what does it cost?

    python benchmarks/engine_cpu.py            # prints, and writes its section of RESULTS.md
    python benchmarks/engine_cpu.py --dry      # only prints

Exactness: the update of 6 micro-batches with a window of 4 (a remainder of 2), and of ragged token counts, against the big
batch in float64. Time: microseconds of CPU for one micro-batch of a tiny MLP, the loops taking turns. A library that is not installed is left out.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable

import torch
from results import machine, write_section
from torch import nn

import fallline

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
for noisy in ("lightning", "lightning.pytorch", "lightning.fabric", "accelerate"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[[nn.Module, list[Batch], int, "Clock"], None]
CLIP = 1.0


class Clock:
    """CPU time from the first micro-batch after the warm-up to the last one: other programs on the machine do not count."""

    def __init__(self, skip: int = 0) -> None:
        self.skip, self.count, self.begin, self.end = skip, 0, 0.0, 0.0

    def tick(self) -> None:
        """Called at the beginning of each micro-batch."""
        if self.count == self.skip:
            self.begin = time.process_time()
        self.end = time.process_time()
        self.count += 1

    @property
    def microseconds(self) -> float:
        return (self.end - self.begin) / (self.count - 1 - self.skip) * 1e6


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(dtype)


def masked_mean(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss people write: a mean over the tokens of the micro-batch, padding (target 0) left out."""
    x, y = batch
    keep = (y != 0).any(-1)
    return (model(x) - y)[keep].square().mean()


# -- the loops: all accumulate, clip and step ------------------------------------------------------------------------


def by_hand(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(batches):
        clock.tick()
        (masked_mean(model, batch) / accumulate).backward()
        if (i + 1) % accumulate == 0 or i + 1 == len(batches):
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()


def by_engine(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    stepper = fallline.Stepper(
        model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=accumulate, clip_norm=CLIP
    )
    for batch in stepper.over(batches):
        clock.tick()
        with stepper.micro_batch() as micro:
            micro.backward(masked_mean(model, batch))


def by_engine_with_weights(
    model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock
) -> None:
    stepper = fallline.Stepper(
        model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=accumulate, clip_norm=CLIP
    )
    for x, y in stepper.over(batches):
        clock.tick()
        with stepper.micro_batch() as micro:
            keep = (y != 0).any(-1)
            loss = (model(x) - y)[keep].square()
            micro.backward(loss.sum(), weight=loss.numel())


def by_hand_plain(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(batches):
        clock.tick()
        (masked_mean(model, batch) / accumulate).backward()
        if (i + 1) % accumulate == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def by_engine_plain(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    """It still measures the norm, and would not apply an update that is not finite."""
    stepper = fallline.Stepper(
        model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=accumulate
    )
    for batch in stepper.over(batches):
        clock.tick()
        with stepper.micro_batch() as micro:
            micro.backward(masked_mean(model, batch))


def by_fabric(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for i, batch in enumerate(batches):
        clock.tick()
        closes = (i + 1) % accumulate == 0 or i + 1 == len(batches)
        with fabric.no_backward_sync(model, enabled=not closes):
            fabric.backward(masked_mean(model, batch) / accumulate)
        if closes:
            fabric.clip_gradients(model, optimizer, max_norm=CLIP)
            optimizer.step()
            optimizer.zero_grad()


def by_accelerate(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()  # the loops run one after the other in one process
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader
    )
    for batch in loader:
        clock.tick()
        with accelerator.accumulate(model):
            accelerator.backward(masked_mean(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()


def by_lightning(model: nn.Module, batches: list[Batch], accumulate: int, clock: Clock) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Batch, _: int) -> torch.Tensor:
            clock.tick()
            return masked_mean(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))


PLAIN: dict[str, Loop] = {"hand-written": by_hand_plain, "fallline": by_engine_plain}
LOOPS: dict[str, Loop] = {
    "hand-written": by_hand,
    "fallline": by_engine,
    "fallline, token weights": by_engine_with_weights,
    "Fabric": by_fabric,
    "Accelerate": by_accelerate,
    "Lightning": by_lightning,
}


# -- exact? ---------------------------------------------------------------------------------------------------------


def equal_batches(count: int, dtype: torch.dtype) -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randn(8, 16, dtype=dtype), torch.randn(8, 4, dtype=dtype)) for _ in range(count)]


def ragged_batches(dtype: torch.dtype) -> list[Batch]:
    """Four micro-batches of 8 rows; 8, 2, 1 and 5 of them are real, the others padding."""
    batches = equal_batches(4, dtype)
    for (_, y), real in zip(batches, (8, 2, 1, 5), strict=True):
        y[real:] = 0
    return batches


def big_batch(batches: list[Batch], accumulate: int) -> nn.Module:
    model = mlp(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(0, len(batches), accumulate):
        x, y = (torch.cat(parts) for parts in zip(*batches[i : i + accumulate], strict=True))
        optimizer.zero_grad()
        masked_mean(model, (x, y)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return model


def error(loop: Loop, batches: list[Batch]) -> float:
    """How far the parameters are from the big batch's, relative to how far those moved."""
    model, start, exact = mlp(torch.float64), mlp(torch.float64), big_batch(batches, 4)
    loop(model, batches, 4, Clock())
    flat = [
        torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (model, start, exact)
    ]
    return float((flat[0] - flat[2]).norm() / (flat[1] - flat[2]).norm())


# -- fast? ----------------------------------------------------------------------------------------------------------


def microseconds(
    loops: dict[str, Loop], rounds: int, batches: int, accumulate: int = 4
) -> dict[str, float]:
    """The quietest of many rounds, in which the loops take turns: neighbours on the machine only ever add time."""
    data = equal_batches(batches, torch.float32)
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            clock = Clock(skip=20)
            loop(mlp(), data, accumulate, clock)
            samples[name].append(clock.microseconds)
    return {name: min(values) for name, values in samples.items()}


def installed(loop: Loop) -> bool:
    try:
        loop(mlp(), equal_batches(4, torch.float32), 4, Clock())
    except ImportError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="do not write RESULTS.md")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    loops = {name: loop for name, loop in LOOPS.items() if installed(loop)}

    measured = microseconds(loops, options.rounds, 120)
    errors = {
        name: (
            error(loop, equal_batches(6, torch.float64)),
            error(loop, ragged_batches(torch.float64)),
        )
        for name, loop in loops.items()
    }
    plain = {k: microseconds(PLAIN, options.rounds, 120, k) for k in (4, 1)}
    hand = measured["hand-written"]
    rows = [
        f"| {name} | {errors[name][0]:.1e} | {errors[name][1]:.1e} | {us:.0f} | {us - hand:+.0f} |"
        for name, us in measured.items()
    ]
    text = "\n".join(
        [
            f"`python benchmarks/engine_cpu.py`, {machine()}, torch {torch.__version__}, CPU time on one thread, the quietest of {options.rounds} rounds in turns",
            "",
            "A tiny MLP (16-32-4), batch 8, SGD, clipping, 4 micro-batches for one update. Error: distance of the parameters from the big",
            "batch's, relative to how far those moved (float64): 6 micro-batches leave a remainder of 2; ragged ones have 8, 2, 1 and 5 real",
            "rows. Every loop takes the mean of its micro-batch, as people do, except the one with token weights.",
            "",
            "| loop | error, remainder | error, ragged | µs a micro-batch | over hand-written |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "Without clipping, where the hand-written loop measures and checks nothing: "
            + "; ".join(
                f"{k} micro-batch{'es' if k > 1 else ''} for one update: hand-written {us['hand-written']:.0f} µs, fallline {us['fallline']:.0f} µs "
                f"({us['fallline'] - us['hand-written']:+.0f})"
                for k, us in plain.items()
            )
            + ". Bar: at most +20 µs a micro-batch.",
        ]
    )
    print(text)
    if not options.dry:
        write_section("engine on a CPU", text)


if __name__ == "__main__":
    main()

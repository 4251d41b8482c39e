"""Activation checkpointing and accumulation: what they cost, what they save, what they change."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import saved_bytes
from fallline.proof.experiments._training import gradient, off
from fallline.proof.experiments.memory._live import SavedForBackward


@experiment(
    "checkpointing-cost",
    claim="Recomputing a whole block adds half to the backward pass's FLOPs, a third to the step's; a block that ends in a Linear is not recomputed to its end and adds a quarter.",
)
def checkpointing_cost() -> Measured:
    torch.manual_seed(0)
    added = {
        name: _added_flops(block)
        for name, block in {
            "ends in an activation": nn.Sequential(
                nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU()
            ),
            "ends in a Linear": nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)),
            "transformer layer": nn.TransformerEncoderLayer(
                64, 4, 256, dropout=0.0, batch_first=True, norm_first=True
            ),
        }.items()
    }
    whole, early, layer = added.values()
    return Measured(
        sides={
            name: {
                "added to the backward pass, percent of FLOPs": backward,
                "added to the step, percent of FLOPs": step,
            }
            for name, (backward, step) in added.items()
        },
        conclusion="FLOPs added to the backward pass (to the whole step): "
        + ", ".join(f"{name} +{b:.0f}% (+{s:.0f}%)" for name, (b, s) in added.items()),
        holds={
            "everything recomputed adds half to the backward pass, a third to the step": abs(
                whole[0] - 50
            )
            < 1
            and abs(whole[1] - 100 / 3) < 1,
            "an early stop halves that for two equal Linears": abs(early[0] - 25) < 1
            and abs(early[1] - 100 / 6) < 1,
            "a transformer layer lies between": early[0] < layer[0] < whole[0],
        },
    )


def _added_flops(block: nn.Module) -> tuple[float, float]:
    """What checkpointing adds to the FLOPs of the backward pass and of the whole step, in percent."""
    backward: list[int] = []
    step: list[int] = []
    for checkpointed in (False, True):
        x = torch.randn(8, 16, 64, requires_grad=True)
        with FlopCounterMode(display=False) as forward_counter:
            out = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
        with FlopCounterMode(display=False) as backward_counter:
            out.sum().backward()
        backward.append(backward_counter.get_total_flops())
        step.append(forward_counter.get_total_flops() + backward[-1])
    return 100 * (backward[1] / backward[0] - 1), 100 * (step[1] / step[0] - 1)


@experiment(
    "checkpointing-is-exact",
    claim="Checkpointing changes no gradient by a bit, also with bfloat16 autocast and dropout, as long as the RNG state is preserved.",
)
def checkpointing_is_exact() -> Measured:
    def errors(preserve_rng: bool) -> dict[str, float]:
        return {
            "gradient error, float32": _checkpointing_error(preserve_rng),
            "gradient error, bfloat16 autocast": _checkpointing_error(preserve_rng, autocast=True),
            "gradient error, dropout": _checkpointing_error(preserve_rng, dropout=0.5),
        }

    kept, lost = errors(True), errors(False)
    dropout = lost["gradient error, dropout"]
    return Measured(
        sides={"RNG state preserved (default)": kept, "preserve_rng_state=False": lost},
        conclusion=f"gradients are bitwise the same; with dropout they are {100 * dropout:.0f}% off without the preserved RNG state, 0% with it",
        holds={
            "the same bits, in float32, under autocast and with dropout": not any(kept.values()),
            "without the RNG state dropout differs": dropout > 0.2,
        },
    )


def _checkpointing_error(
    preserve_rng: bool, *, dropout: float = 0.0, autocast: bool = False
) -> float:
    """How far the checkpointed gradient is from the plain one: 0 only where all bits are the same."""
    plain = _checkpointed_gradient(None, dropout=dropout, autocast=autocast)
    return off(_checkpointed_gradient(preserve_rng, dropout=dropout, autocast=autocast), plain)


def _checkpointed_gradient(preserve_rng: bool | None, *, dropout: float, autocast: bool) -> Tensor:
    """The gradient of a small block: plain where `preserve_rng` is None, else checkpointed."""
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 32), nn.GELU()
    )
    x = torch.randn(16, 32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if preserve_rng is None:
            out = block(x)
        else:
            out = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng)
        loss = out.float().pow(2).mean()
    loss.backward()
    return gradient(block)


@experiment(
    "checkpointing-and-batchnorm",
    claim="A checkpointed batch norm updates its running statistics twice a step.",
    taught="Checkpointing is compatible with batch norm.",
)
def checkpointing_and_batchnorm() -> Measured:
    seen = {
        name: _running(checkpointed)
        for name, checkpointed in (("plain", False), ("checkpointed", True))
    }
    moved = seen["checkpointed"][1] / seen["plain"][1]
    return Measured(
        sides={
            name: {"batches tracked after one step": tracked, "running mean": mean}
            for name, (tracked, mean) in seen.items()
        },
        conclusion=f"after one step a checkpointed batch norm has tracked {seen['checkpointed'][0]} batches, and its mean moved {moved:.1f} times as far",
        holds={
            "two batches tracked for one": seen["checkpointed"][0] == 2 and seen["plain"][0] == 1,
            "the mean moved 1.9 times as far": abs(moved - 1.9) < 0.01,
        },
    )


def _running(checkpointed: bool) -> tuple[int, float]:
    """Batches a batch norm has tracked after one step, and the length of its running mean."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    block = nn.Sequential(norm, nn.Linear(8, 8), nn.ReLU())
    x = torch.randn(32, 8) + 1
    out = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    out.sum().backward()
    assert norm.num_batches_tracked is not None and norm.running_mean is not None
    return int(norm.num_batches_tracked), float(norm.running_mean.norm())


@experiment(
    "accumulation-saves-activations",
    claim="k micro-batches with a backward each keep 1/k of the big batch's activations at the peak; with one backward for all of them they keep as much as the big batch.",
)
def accumulation_saves_activations() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh())

    def peak(k: int, *, at_once: bool = False) -> int:
        """The most bytes that are kept while 256 samples pass in k micro-batches."""
        with SavedForBackward(model) as saved:
            total = torch.zeros(())
            for _ in range(k):
                total = total + model(torch.randn(256 // k, 100)).mean() / k
                if not at_once:
                    total.backward()
                    total = torch.zeros(())
            if at_once:
                total.backward()
        return saved.peak

    peaks = {k: peak(k) for k in (1, 2, 4)}
    together = peak(4, at_once=True)
    return Measured(
        sides={
            **{f"k = {k}": {"peak bytes kept for the backward pass": n} for k, n in peaks.items()},
            "k = 4, one backward for all": {"peak bytes kept for the backward pass": together},
        },
        conclusion=f"256 samples at once keep {peaks[1]:,} bytes for the backward pass, in 4 micro-batches at most {peaks[4]:,}: {peaks[1] / peaks[4]:.2f} times less; with one backward for all 4 it is {together:,}",
        holds={
            "a quarter with k = 4": abs(peaks[1] / peaks[4] - 4) < 0.05,
            "a half with k = 2": abs(peaks[1] / peaks[2] - 2) < 0.05,
            "nothing is saved with one backward for all": together > 0.95 * peaks[1],
        },
    )


@experiment(
    "checkpointing-saves-activations",
    claim="A checkpointed stack keeps one activation per block instead of everything inside it.",
)
def checkpointing_saves_activations() -> Measured:
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU())
        for _ in range(8)
    )
    kept = {}
    for checkpointed in (False, True):
        x = torch.randn(128, 64, requires_grad=True)
        with saved_bytes(blocks) as sizes:
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            kept[checkpointed] = sum(sizes)
        x.sum().backward()
    ratio = kept[False] / kept[True]
    return Measured(
        sides={
            "plain": {"bytes kept for the backward pass": kept[False]},
            "checkpointed": {"bytes kept for the backward pass": kept[True]},
        },
        conclusion=f"8 blocks keep {kept[False]:,} bytes, checkpointed {kept[True]:,}: {ratio:.0f} times less",
        holds={
            "checkpointed, one activation of each block is kept": kept[True]
            == len(blocks) * 128 * 64 * 4,
            "at least five times less than without": ratio > 5,
        },
    )

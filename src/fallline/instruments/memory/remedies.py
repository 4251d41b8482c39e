"""What each remedy for memory would save: computed by replaying the peak's update with other sizes, and put in place for a try.

A remedy changes what lives when, so the peak may move: the whole update is replayed, not only its highest moment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.instruments.memory.ledger import (
    ACTIVATIONS,
    BATCH,
    GRADIENTS,
    PARAMETERS,
    STATE,
    TEMPORARY,
    Entry,
    Peak,
)

if TYPE_CHECKING:
    from torch import nn

    from fallline.taps.patches import Patches, Wrapped

__all__ = ["Remedy", "computed", "put_in_place", "replayed"]

_PASS = (ACTIVATIONS, BATCH, TEMPORARY)  # what one forward and backward makes
_SMALL = 4096 * 4  # bytes of state that 8-bit optimizers keep in 32 bits


@dataclass
class Remedy:
    """One remedy: the peak it would leave, computed, and the one it left, where it was tried."""

    name: str  # as `--with` takes it
    how: str  # what to write
    costs: str
    peak: int  # computed
    tried: int | None = None  # measured
    problem: str = ""  # why it was not tried, or how the try failed


def replayed(
    peak: Peak, weight: Callable[[Entry], float], extra: Callable[[str], float] = lambda _: 0.0
) -> int:
    """The highest moment of the update, had every storage been `weight` times its size; `extra` bytes by phase."""
    total = sum(entry.size * weight(entry) for entry in peak.base)
    most = total + extra("between")
    for born, entry in peak.log:
        total += entry.size * weight(entry) * (1 if born else -1)
        if born:
            most = max(most, total + extra(entry.phase))
    return round(most)


def computed(peak: Peak, model: nn.Module | None, optimizers: Iterable[Any]) -> list[Remedy]:
    """All remedies that can be computed for this peak, the one that saves most first."""
    found: list[Remedy | None] = [_micro_batch(peak), *_checkpoint(peak, model), _bf16(peak)]
    found += [_set_to_none(peak), *_step(peak, list(optimizers)), _eight_bit(peak)]
    return sorted((r for r in found if r is not None), key=lambda r: r.peak)


def _micro_batch(peak: Peak) -> Remedy:
    """Half the batch twice: half of what a pass makes; the gradients live throughout, and one at a time is added to them."""
    gradients = _gradients(peak)
    largest = max(gradients, default=0)

    def weight(entry: Entry) -> float:
        if entry.role == GRADIENTS:
            return 0.0
        return 0.5 if entry.role in _PASS and entry.phase not in ("optimizer", "setup") else 1.0

    return Remedy(
        "micro-batch",
        "half the batch size, accumulate 2 (loss / 2, step every second micro-batch)",
        "two smaller passes per update; batch norm sees half as many samples",
        replayed(peak, weight, lambda p: sum(gradients) + _in_backward(largest, p)),
    )


def _checkpoint(peak: Peak, model: nn.Module | None) -> list[Remedy]:
    """Blocks of the same kind side by side: their insides are computed again in the backward, one block at a time."""
    if model is None:
        return []
    found = []
    for path, blocks in _stacks(model).items():
        inside = {f"{path}.{name}" if path else name: 0 for name in blocks}
        outputs: dict[str, Entry] = {}
        for entry in peak.held:
            block = _within(entry, inside)
            if entry.role == ACTIVATIONS and block is not None:
                inside[block] += entry.size
                outputs[block] = entry  # the last one made in there goes out
        if not any(inside.values()):
            continue
        stay = {id(entry) for entry in outputs.values()}
        largest = max(inside.values())

        weight = functools.partial(_recomputed, inside, stay)
        again = functools.partial(_in_backward, largest)
        found.append(
            Remedy(
                f"checkpoint={path}",
                f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for the {len(blocks)} blocks of {path or 'the model'}",
                "one more forward of these blocks in every backward",
                replayed(peak, weight, again),
            )
        )
    return found


def _recomputed(inside: Iterable[str], stay: set[int], entry: Entry) -> float:
    inner = entry.role == ACTIVATIONS and _within(entry, inside) is not None
    return 0.0 if inner and id(entry) not in stay else 1.0


def _in_backward(size: float, phase: str) -> float:
    return size if phase == "backward" else 0.0


def _stacks(model: nn.Module) -> dict[str, list[str]]:
    """Where two or more children of one class, with children or parameters of their own, stand side by side."""
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        kinds: dict[type, list[str]] = {}
        for name, child in module.named_children():
            if any(True for _ in child.children()):
                kinds.setdefault(type(child), []).append(name)
        most = max(kinds.values(), key=len, default=[])
        if len(most) >= 2 and not any(path.startswith(f"{outer}.") for outer in found):
            found[path] = most
    return found


def _within(entry: Entry, blocks: Iterable[str]) -> str | None:
    return next((b for b in blocks if entry.module == b or entry.module.startswith(f"{b}.")), None)


def _bf16(peak: Peak) -> Remedy:
    """Half of every 32-bit float that modules make; the weights get 16-bit copies. Norms and losses stay in fp32."""
    weights = sum(e.size for e in _all(peak) if e.role == PARAMETERS and e.floating == 4)

    def weight(entry: Entry) -> float:
        half = entry.role == ACTIVATIONS and bool(entry.module)
        half |= entry.role == TEMPORARY and entry.phase in ("forward", "backward")
        return 0.5 if half and entry.floating == 4 else 1.0

    def copies(phase: str) -> float:
        return weights / 2 if phase in ("forward", "between", "backward") else 0.0

    return Remedy(
        "bf16",
        "with torch.autocast(device_type, dtype=torch.bfloat16) around forward and loss",
        "8 bits of mantissa; what it does to the numbers: fallline measure precision",
        replayed(peak, weight, copies),
    )


def _set_to_none(peak: Peak) -> Remedy | None:
    """Gradients that live from one update to the next, filled with zeros, live through the forward for nothing."""
    gone = {id(entry) for born, entry in peak.log if not born}
    kept = sum(e.size for e in peak.base if e.role == GRADIENTS and id(e) not in gone)
    if not kept:
        return None
    steps = max(1, sum(born and entry.phase == "backward" for born, entry in peak.log))
    total = sum(entry.size for entry in peak.base) - kept
    most, grown = total, 0.0
    for born, entry in peak.log:
        total += entry.size if born else -entry.size
        if born and entry.phase == "backward":
            grown = min(kept, grown + kept / steps)  # they come one by one
        elif born and entry.phase == "optimizer":
            grown = kept
        most = max(most, round(total + grown))
    return Remedy(
        "set_to_none", "optimizer.zero_grad(set_to_none=True), the default", "nothing", most
    )


def _step(peak: Peak, optimizers: list[Any]) -> list[Remedy]:
    """The foreach implementation makes temporaries for all parameters at once; a loop for one at a time, fused none."""
    if not any(e.phase == "optimizer" and e.role == TEMPORARY for _, e in peak.log):
        return []
    sizes = [
        p.numel() * p.element_size()
        for o in optimizers
        for g in o.param_groups
        for p in g["params"]
    ]
    share = max(sizes) / sum(sizes) if sizes else 1.0

    def times(factor: float) -> Callable[[Entry], float]:
        return lambda e: factor if e.phase == "optimizer" and e.role == TEMPORARY else 1.0

    return [
        Remedy(
            "no-foreach",
            "foreach=False in the optimizer",
            "a slower step: one kernel per parameter and operation",
            replayed(peak, times(share)),
        ),
        Remedy(
            "fused",
            "fused=True in the optimizer (Adam, AdamW, SGD, Adagrad)",
            "nothing; rounding differs in the last bits",
            replayed(peak, times(0.0)),
        ),
    ]


def _eight_bit(peak: Peak) -> Remedy | None:
    if not any(e.role == STATE and e.size > _SMALL for e in _all(peak)):
        return None

    def weight(entry: Entry) -> float:
        return 0.25 if entry.role == STATE and entry.size > _SMALL else 1.0

    return Remedy(
        "8-bit states",
        "an optimizer with 8-bit states (bitsandbytes, torchao)",
        "another package; state is rounded in blocks",
        replayed(peak, weight),
        problem="not tried: it needs another package",
    )


def _all(peak: Peak) -> list[Entry]:
    return list(dict.fromkeys([*peak.base, *(entry for _, entry in peak.log)]))


def _gradients(peak: Peak) -> list[int]:
    """The sizes of all gradients of an update: those it made, or those it found and wrote into."""
    made = [entry.size for born, entry in peak.log if born and entry.role == GRADIENTS]
    return made or [entry.size for entry in peak.base if entry.role == GRADIENTS]


# -- trying ------------------------------------------------------------------------------------------------------


def put_in_place(name: str, taps: Patches) -> None:
    """Change what the script is about to use, as if it had been written so."""
    kind, _, where = name.partition("=")
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    if kind == "micro-batch":
        taps.patch(DataLoader, "__init__", _half_batches)
        taps.patch(Optimizer, "zero_grad", _every_second)
    elif kind == "set_to_none":
        taps.patch(Optimizer, "zero_grad", _to_none)
        taps.patch(nn.Module, "zero_grad", _to_none)
    elif kind in ("no-foreach", "fused"):
        taps.patch(Optimizer, "__init__", functools.partial(_implementation, kind == "fused"))
    else:
        change = _autocast if kind == "bf16" else functools.partial(_checkpointed, where)
        taps.patch(nn.Module, "__call__", functools.partial(_once, change))


def _half_batches(original: Wrapped) -> Wrapped:
    def __init__(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any) -> None:
        half = max(1, batch_size // 2) if isinstance(batch_size, int) else batch_size
        original(loader, dataset, half, *args, **kwargs)

    return __init__


def _every_second(original: Wrapped) -> Wrapped:
    """Under accumulation the gradients of the first half live through the second."""
    calls = 0

    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            original(optimizer, *args, **kwargs)

    return zero_grad


def _to_none(original: Wrapped) -> Wrapped:
    return lambda self, *args, **kwargs: original(self, set_to_none=True)


def _implementation(fused: bool, original: Wrapped) -> Wrapped:
    def __init__(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
        if "foreach" in defaults:
            defaults["foreach"] = None if fused else False
        if fused and "fused" not in defaults:
            raise UsageError(f"{type(optimizer).__name__} has no fused implementation")
        if "fused" in defaults:
            defaults["fused"] = True if fused else None
        original(optimizer, params, defaults)

    return __init__


def _once(change: Callable[[Any], None], original: Wrapped) -> Wrapped:
    """Change the first module that is called with gradients on: the model."""
    import torch

    changed = False

    def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal changed
        if not changed and torch.is_grad_enabled():
            changed = True
            change(module)
        return original(module, *args, **kwargs)

    return __call__


def _autocast(model: Any) -> None:
    import torch

    device = next((p.device.type for p in model.parameters()), "cpu")
    forward = model.forward

    def in_bf16(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16):
            output = forward(*args, **kwargs)
        return output.float() if isinstance(output, torch.Tensor) else output

    model.forward = in_bf16


def _checkpointed(path: str, model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for name in _stacks(model)[path]:
        block = model.get_submodule(f"{path}.{name}" if path else name)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

"""Proof that stopping and resuming changes nothing: train straight, train with a stop, compare the bits."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fallline.engine import rng
from fallline.engine.agree import gather, rank
from fallline.engine.gradients import is_dtensor
from fallline.errors import EngineError

__all__ = ["ResumeReport", "verify_resume"]

_RANDOMNESS = "randomness"


@dataclass(frozen=True)
class ResumeReport:
    """True when resuming gives the same bits. Else `not_restored` names what was lost, where that could be seen."""

    same: bool
    not_restored: list[str] = field(default_factory=list)
    message: str = ""

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        return self.message


def verify_resume(
    train_fn: Callable[[Path, int], Any], *, steps: int = 6, stop: int | None = None
) -> ResumeReport:
    """Train `steps` updates straight, and again with a stop after `stop`, and compare every bit.

    `train_fn(folder, steps)` builds everything again, continues from the checkpoint in `folder` if there is one, trains until
    `steps` updates are made in all, saves in `folder`, and returns what it trained: a Stepper, or a dict of named objects
    ({"model": model, "optimizer": optimizer, ...}; anything with a state_dict, or plain values).
    """
    stop = steps // 2 if stop is None else stop
    if not 0 < stop < steps:
        raise EngineError(
            f"stop={stop} of steps={steps}: the stop must lie between the first update and the last"
        )
    began = rng.capture()
    with _shared_folder() as folder:
        straight_folder, stopped_folder = Path(folder, "straight"), Path(folder, "stopped")
        straight = _snapshot(train_fn(straight_folder, steps))
        rng.restore(began)
        at_stop = _snapshot(train_fn(stopped_folder, stop))
        _scramble()
        # Nothing left to train: this is what loading gave back
        restored = _snapshot(train_fn(stopped_folder, stop))
        _scramble()
        resumed = _snapshot(train_fn(stopped_folder, steps))
        different = _on_any_rank(
            name for name in _differences(straight, resumed) if not name.startswith(_RANDOMNESS)
        )
        if not different:
            rng.restore(began)
            return ResumeReport(
                True, [], f"resuming after {stop} of {steps} updates gives the same bits"
            )
        # A source of randomness that nobody drew from is not worth naming
        used = _differences(at_stop, straight)
        lost = _on_any_rank(
            name
            for name in _differences(at_stop, restored)
            if not name.startswith(_RANDOMNESS) or name in used
        )
        rng.restore(began)
        again = _snapshot(train_fn(Path(folder, "again"), steps))
    rng.restore(began)
    unstable = _on_any_rank(
        name for name in _differences(straight, again) if not name.startswith(_RANDOMNESS)
    )
    return ResumeReport(False, lost, _explain(different, lost, unstable))


@contextmanager
def _shared_folder() -> Iterator[str]:
    """One folder for all ranks, which rank 0 makes and removes."""
    mine = tempfile.TemporaryDirectory() if rank() == 0 else None
    try:
        yield gather(None if mine is None else mine.name)[0] or ""
        gather(None)  # nobody is in it any more
    finally:
        if mine is not None:
            mine.cleanup()


def _on_any_rank(names: Iterable[str]) -> list[str]:
    """The names of all ranks, each once: every rank must come to the same conclusion."""
    return list(dict.fromkeys(name for several in gather(list(names)) for name in several))


def _explain(different: list[str], lost: list[str], unstable: list[str]) -> str:
    text = f"resuming changes the result: {_some(different)} differ{'s' if len(different) == 1 else ''}. "
    if unstable:
        return text + (
            f"But two straight runs differ too ({_some(unstable)}), so training itself is not deterministic: "
            "call fallline.seed_everything(seed, deterministic=True) first thing in train_fn"
        )
    if lost:
        return text + f"Not restored: {_some(lost)}"
    return text + (
        "Everything that train_fn returns was restored, so it is something else: usually the place in the data, "
        "or the order a sampler had begun with (fallline.Stepper.over keeps both)"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _scramble() -> None:
    """Other randomness than before, so that what is not restored cannot be right by luck."""
    random.seed(987654321)
    torch.manual_seed(987654321)
    state = rng.capture_host()
    if "numpy" in state:
        state["numpy"]["keys"] = state["numpy"]["keys"].flip(0)
        rng.restore(state)


def _snapshot(trained: Any) -> dict[str, Any]:
    """Every value by its path: copies, because training continues in the same process."""
    parts: dict[str, Any] = dict(trained) if isinstance(trained, Mapping) else {"stepper": trained}
    stepper = parts.get("stepper")
    for name in ("models", "optimizers", "schedulers"):
        if hasattr(stepper, name):
            parts[name] = list(getattr(stepper, name))
    leaves: dict[str, Any] = {}
    for name, part in parts.items():
        _flatten(part, name, leaves)
    _flatten(rng.capture(), _RANDOMNESS, leaves)
    return leaves


def _flatten(value: Any, path: str, leaves: dict[str, Any]) -> None:
    if callable(getattr(value, "state_dict", None)):
        value = value.state_dict()
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, f"{path}.{key}", leaves)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _flatten(item, f"{path}.{i}", leaves)
    else:
        if isinstance(value, Tensor):
            here: Any = value.detach()
            value = (here.to_local() if is_dtensor(here) else here).clone()
        leaves[path] = value


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    missing = object()
    names = list(dict.fromkeys([*first, *second]))
    return [
        name for name in names if not _same(first.get(name, missing), second.get(name, missing))
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype is not b.dtype:
            return False
        return torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(a, float) and isinstance(b, float) and a != a and b != b:
        return True
    return type(a) is type(b) and bool(a == b)

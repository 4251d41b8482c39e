"""Which token a language model learns to predict at each position: the next one, or, where labels are shifted twice, the one after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fallline.taps.patches import Patches, Wrapped

__all__ = ["SHIFTED_TWICE", "of_the_kind", "unshifted", "watch_labels"]

SHIFTED_TWICE = "labels shifted twice"
_IGNORED = -100
_LEAST = 8  # positions: fewer agree by chance
_AGREE, _DIFFER = 0.95, 0.5


def watch_labels(
    patches: Patches, inputs: Callable[[], Tensor | None], met: set[str], *, mend: bool
) -> None:
    """Look at the targets of cross entropy; with `mend`, those that are shifted twice are shifted back by one."""

    def make(original: Wrapped) -> Wrapped:
        def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            tokens = inputs()
            if tokens is not None and shifted_twice(tokens, target):
                met.add(SHIFTED_TWICE)
                if mend:
                    target = _shifted_back(tokens, target)
            return original(input, target, *args, **kwargs)

        return cross_entropy

    patches.patch(functional, "cross_entropy", make, imported=True)


def shifted_twice(tokens: Tensor, target: Any) -> bool:
    """Whether the targets are the tokens two positions on, and not one."""
    if not isinstance(target, Tensor) or target.is_floating_point() or target.numel() < _LEAST:
        return False
    if target.numel() % tokens.shape[0]:
        return False
    rows = target.reshape(tokens.shape[0], -1).to(tokens.device)
    if rows.shape[1] > tokens.shape[1]:
        return False
    return _agree(tokens, rows, 2) >= _AGREE and _agree(tokens, rows, 1) <= _DIFFER


def _agree(tokens: Tensor, rows: Tensor, shift: int) -> float:
    length = min(rows.shape[1], tokens.shape[1] - shift)
    if length < 1:
        return 0.0
    ours, theirs = rows[:, :length], tokens[:, shift : shift + length]
    counted = ours != _IGNORED
    if int(counted.sum()) < _LEAST:
        return 0.0
    return float((ours == theirs)[counted].float().mean())


def unshifted(batch: Any) -> Any:
    """A batch whose labels are the next tokens, with labels that are the tokens; any other as it is."""
    if not hasattr(batch, "items") or not {"input_ids", "labels"} <= set(batch):
        return batch
    tokens, labels = batch["input_ids"], batch["labels"]
    if not isinstance(tokens, Tensor) or not isinstance(labels, Tensor) or tokens.dim() != 2:
        return batch
    if labels.shape != tokens.shape or _agree(tokens, labels, 1) < _AGREE:
        return batch
    back = torch.cat([tokens[:, :1].to(labels), labels[:, :-1]], dim=1)
    return of_the_kind(batch, {**batch, "labels": back})


def of_the_kind(batch: Any, values: dict[str, Any]) -> Any:
    """A tokenizer's batch can do more than a dict: `batch.to(device)`."""
    return type(batch)(values) if type(batch) is not dict else values


def _shifted_back(tokens: Tensor, target: Tensor) -> Tensor:
    rows = target.reshape(tokens.shape[0], -1)
    back = torch.cat([tokens[:, 1:2].to(rows), rows[:, :-1]], dim=1)
    return back.reshape(target.shape)

"""Log-probabilities of the same tokens, by whoever computed them: sampler, trainer, reference."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fallline.location import Location

__all__ = ["Agreement", "ModelRef", "Sampling", "Scored", "agreement", "state_of", "taken"]

ModelRef = weakref.ref[nn.Module]  # a script may throw its models away

_CLIP = 0.2  # the usual range of PPO's and GRPO's ratios


@dataclass(slots=True)
class Scored:
    """One forward pass over tokens."""

    model: ModelRef
    ids: Tensor
    real: Tensor | None
    graph: bool  # with gradients on
    state: tuple[str, ...]  # which adapters were active
    dropping: bool  # dropout was active
    update: int
    at: Location | None
    logp: Tensor | None = None  # (rows, length - 1): of each token after the first
    dtype: torch.dtype = torch.float32


@dataclass(slots=True)
class Sampling:
    """A text that a model writes token by token, without gradients."""

    model: ModelRef
    prompt: Tensor
    state: tuple[str, ...]
    dropping: bool
    update: int
    at: Location | None
    last: Tensor | None = None  # log-probabilities of all tokens that may come next
    written: list[Tensor] = field(default_factory=list)  # the tokens that were chosen
    chosen: list[Tensor] = field(default_factory=list)  # and their log-probabilities
    dtype: torch.dtype = torch.float32

    def scored(self, ids: Tensor) -> Tensor | None:
        """Its log-probabilities of these texts, as far as it wrote them; NaN elsewhere. Trainers shuffle: texts are found by content."""
        start, known = self.prompt.shape[1], self.prompt.shape[1] + len(self.written)
        if not self.written or ids.shape[1] < known:
            return None
        texts = torch.cat([self.prompt, *(t[:, None] for t in self.written)], dim=1).tolist()
        rows = {tuple(text): row for row, text in enumerate(texts)}
        logp = torch.stack(self.chosen, dim=1)
        found = torch.full((ids.shape[0], ids.shape[1] - 1), float("nan"))
        for row, text in enumerate(ids.tolist()):
            own = rows.get(tuple(text[:known]))
            if own is not None:
                found[row, start - 1 : known - 1] = logp[own]
        return found if bool(found.isfinite().any()) else None


@dataclass(slots=True)
class Agreement:
    """How far two passes over the same tokens agree."""

    tokens: int
    largest: float  # of the differences of log-probabilities
    mean: float
    rounding: float  # what their number format alone may make of it
    ratio: tuple[float, float, float]  # least, mean, greatest
    clipped: float  # the share of ratios that a range of 0.2 cuts off
    kl: float

    @property
    def differs(self) -> bool:
        return self.mean > self.rounding

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "largest_difference": self.largest,
            "mean_difference": self.mean,
            "rounding": self.rounding,
            "ratio": list(self.ratio),
            "clipped_share": self.clipped,
            "kl": self.kl,
        }


def agreement(
    before: Tensor, after: Tensor, real: Tensor | None, dtype: torch.dtype
) -> Agreement | None:
    """`before` is the sampler's or the reference's, `after` the trainer's."""
    counted = before.isfinite() & after.isfinite()
    if real is not None:
        counted &= real[:, 1:]
    # a log-probability of exactly 0 is what fused heads write where there is no label
    counted &= (before != 0) & (after != 0)
    if not bool(counted.any()):
        return None
    old, new = before[counted].double(), after[counted].double()
    difference = new - old
    ratio = difference.clamp(-20, 20).exp()
    size = float(old.abs().mean())
    rounding = max(1e-4, 16 * torch.finfo(dtype).eps * max(size, 1.0))
    return Agreement(
        tokens=int(counted.sum()),
        largest=float(difference.abs().max()),
        mean=float(difference.abs().mean()),
        rounding=rounding,
        ratio=(float(ratio.min()), float(ratio.mean()), float(ratio.max())),
        clipped=float(((ratio - 1).abs() > _CLIP).double().mean()),
        kl=float((ratio - 1 - difference).mean()),
    )


def taken(output: Any, ids: Tensor, largest: int) -> tuple[Tensor | None, torch.dtype]:
    """The log-probabilities of the tokens of a text, from what a model returned; on its device."""
    fused = getattr(output, "log_probs", None)
    if isinstance(fused, Tensor) and fused.dim() == 2 and fused.shape[0] == ids.shape[0]:
        width = ids.shape[1] - 1
        if fused.shape[1] >= width:
            return fused.detach()[:, -width:].float(), fused.dtype
    logits = logits_of(output)
    if logits is None or logits.shape[:2] != ids.shape or logits.numel() > largest:
        return None, torch.float32
    # an id that the head does not have is reported by itself (FL017)
    chosen = ids[:, 1:, None].clamp(0, logits.shape[-1] - 1)
    # one row at a time: the whole of it in float32 may not fit beside the model
    rows = [
        row[:-1].float().log_softmax(-1).gather(1, at)[:, 0]
        for row, at in zip(logits.detach(), chosen, strict=True)
    ]
    return torch.stack(rows), logits.dtype


def logits_of(output: Any) -> Tensor | None:
    """What a model says about the next token: (rows, length, vocabulary)."""
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if found is None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        found = first
    return (
        found
        if isinstance(found, Tensor) and found.dim() == 3 and found.is_floating_point()
        else None
    )


def state_of(model: nn.Module) -> tuple[str, ...]:
    """Which of PEFT's adapters take part; a model without any says nothing."""
    layers: list[Any] = [
        m
        for m in model.modules()
        if hasattr(m, "active_adapters") and hasattr(m, "disable_adapters")
    ]
    if not layers:
        return ()
    first = layers[0]
    return ("off",) if first.disable_adapters else tuple(map(str, first.active_adapters))

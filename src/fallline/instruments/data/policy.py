"""Reinforcement learning and preferences: who computed which log-probabilities, and what stays fixed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fallline.instruments.data.lesson import Observation, keep, note
from fallline.instruments.data.scored import (
    Agreement,
    Sampling,
    Scored,
    agreement,
    logits_of,
    state_of,
    taken,
)
from fallline.instruments.where import user_line
from fallline.location import Location
from fallline.taps.frames import user_frames

__all__ = ["Numbers", "Policies"]

_KEPT = 24  # passes that are remembered
_CONSTANT = re.compile(r"^(adv|advantages?|gae|returns?|rewards?|td_\w+|deltas?)$", re.IGNORECASE)
_POLICY_LOSS = re.compile(
    r"^(policy|actor|pg|pi)_?loss$|^loss_?(policy|actor|pg|pi)$", re.IGNORECASE
)
_RL = re.compile(r"^(adv\w*|ratios?|log_?ratios?|old_?log_?p\w*|rewards?|returns)$", re.IGNORECASE)


@dataclass
class Numbers:
    """What the report says about a policy."""

    pairs: list[tuple[str, Agreement]] = field(default_factory=list)
    still: float | None = (
        None  # the share of samples whose tokens got no gradient at all: no advantage
    )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"comparisons": [{"of": of, **a.to_json()} for of, a in self.pairs]}
        return found | ({} if self.still is None else {"samples_without_gradient": self.still})


class Policies:
    """Follows forward passes over the same tokens, with and without gradients."""

    def __init__(self) -> None:
        self.scored: list[Scored] = []
        self.sampling: list[Sampling] = []
        self.fixed: list[
            tuple[nn.Module, Location | None, bool]
        ] = []  # over tokens, without gradients: dropout active?
        self.quiet: list[tuple[nn.Module, Location | None]] = []  # called without gradients
        self.update = 0
        self.numbers = Numbers()
        self.observed: list[Observation] = []
        self.names: set[str] = (
            set()
        )  # of the variables beside the backward that say what kind of loop it is
        self._pending: Scored | None = None
        self._writing: Sampling | None = None
        self._rows: list[Tensor] = []

    @property
    def samples(self) -> bool:
        """The run writes texts with the model that it trains, or its variables say that it rewards them."""
        return bool(self.sampling) or bool(self.names)

    def begins(self, model: nn.Module, inputs: dict[str, Any], at: Location | None) -> None:
        if not torch.is_grad_enabled() and not any(model is m for m, _ in self.quiet):
            self.quiet.append((model, at))
        ids = inputs.get("input_ids")
        if ids is None:
            ids = next((v for v in inputs.values() if isinstance(v, Tensor) and v.dim() == 2), None)
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
            self._pending = None
            return
        mask = inputs.get("attention_mask")
        real = mask != 0 if isinstance(mask, Tensor) and mask.shape == ids.shape else None
        graph, dropping = torch.is_grad_enabled(), _drops(model)
        self._pending = Scored(
            model, ids.long(), real, graph, state_of(model), dropping, self.update, at
        )
        if not graph and not any(model is m for m, _, _ in self.fixed):
            self.fixed.append((model, at, dropping))

    def ends(self, model: nn.Module, output: Any) -> None:
        call, self._pending = self._pending, None
        if call is None or call.model is not model:
            return
        if not call.graph and self._continues(call, output):
            return
        call.logp, call.dtype = taken(output, call.ids)
        if call.logp is None:
            return
        if call.graph:
            self._compare(call)
            self._weigh(output)
        self.scored = [*self.scored, call][-_KEPT:]

    def _continues(self, call: Scored, output: Any) -> bool:
        """Whether this pass writes the next token of a text."""
        logits = logits_of(output)
        if logits is None:
            return False
        last = logits.detach()[:, -1].float().log_softmax(-1).cpu()
        writing = self._writing
        rows, length = call.ids.shape
        if writing is not None and writing.model is call.model and writing.prompt.shape[0] == rows:
            expected = writing.prompt.shape[1] + len(writing.steps)
            if length in (1, expected):
                writing.steps.append(last)
                writing.written.append(call.ids[:, -1])
                if len(writing.steps) == 2:
                    self.sampling = [*self.sampling, writing][-_KEPT:]
                return True
        self._writing = Sampling(
            call.model,
            call.ids,
            call.state,
            call.dropping,
            call.update,
            call.at,
            [last],
            [],
            logits.dtype,
        )
        return False

    def _compare(self, call: Scored) -> None:
        """With what was computed of the same tokens before."""
        assert call.logp is not None
        for writer in reversed(self.sampling):
            before = writer.scored(call.ids)
            if before is not None:
                self._met("sampler", writer, before, call)
                break
        for known in reversed(self.scored):
            if (
                not known.graph
                and known.logp is not None
                and known.ids.shape == call.ids.shape
                and torch.equal(known.ids, call.ids)
            ):
                same = known.model is call.model and known.state == call.state
                self._met("old policy" if same else "reference", known, known.logp, call)
                break

    def _met(self, of: str, known: Scored | Sampling, before: Tensor, call: Scored) -> None:
        assert call.logp is not None
        wider = max((known.dtype, call.dtype), key=lambda d: torch.finfo(d).eps)
        found = agreement(before, call.logp, call.real, wider)
        if found is None:
            return
        self.numbers.pairs.append((of, found))
        same_weights = known.update == call.update and known.state == call.state
        if found.differs and of != "reference" and same_weights and self.samples:
            why = _why(known, call)
            facts = {"of": of, "why": why, **found.to_json(), "sampled_at": str(known.at or "")}
            keep(self.observed, note("FL024", call.at, **facts))

    def _weigh(self, output: Any) -> None:
        fused = getattr(output, "log_probs", None)
        tensor = fused if isinstance(fused, Tensor) else logits_of(output)
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: Tensor) -> None:
        self._rows.append(gradient.detach().abs().reshape(gradient.shape[0], -1).amax(1).cpu())

    def backward_begins(self) -> None:
        """Look at the variables beside the backward: what is called an advantage must be a constant."""
        for frame in user_frames(sys._getframe())[:2]:
            names = dict(frame.f_locals)
            self.names |= {n for n, v in names.items() if _RL.match(n) and isinstance(v, Tensor)}
            constants = {n: v for n, v in names.items() if _CONSTANT.match(n) and _has_graph(v)}
            losses = {n: v for n, v in names.items() if _POLICY_LOSS.match(n) and _has_graph(v)}
            for loss_name, loss in losses.items():
                nodes = _nodes(loss)
                for name, value in constants.items():
                    if value.grad_fn in nodes:
                        keep(
                            self.observed, note("FL023", user_line(), variable=name, loss=loss_name)
                        )

    def backward_ends(self) -> None:
        if self._rows and self.samples:
            still = torch.cat(self._rows) == 0
            self.numbers.still = float(still.double().mean())

    def update_ends(self) -> None:
        self.update += 1
        self._writing = None

    def observations(
        self,
        optimized: set[int],
        reached: set[int],
        trained: list[tuple[nn.Module, Location | None]],
    ) -> list[Observation]:
        """What is meant to be fixed and is not; and policies that no gradient reaches."""
        found = list(self.observed)
        learning = [m for m, _ in trained if any(id(p) in optimized for p in m.parameters())]
        for model, at, dropping in self.fixed:
            if dropping and _beside(model, learning) and not _shares(model, learning):
                found.append(note("FL021", at, why="dropout", model=type(model).__name__))
        for model, at in trained:
            gets = any(id(p) in reached for p in model.parameters())
            if gets and learning and not any(id(p) in optimized for p in model.parameters()):
                found.append(note("FL021", at, why="gradient", model=type(model).__name__))
        return found


def _why(known: Scored | Sampling, call: Scored) -> str:
    if known.dropping != call.dropping or (known.dropping and call.dropping):
        return "dropout"
    if known.model is not call.model:
        return "another model"
    if known.dtype != call.dtype:
        return "another number format"
    return "unknown"


def _drops(model: nn.Module) -> bool:
    """Whether a dropout is active in it now."""
    kinds = nn.modules.dropout._DropoutNd
    if any(isinstance(m, kinds) and m.training and m.p > 0 for m in model.modules()):
        return True
    config = getattr(model, "config", None)
    functional = [
        getattr(config, n, 0) for n in ("attention_dropout", "attention_probs_dropout_prob")
    ]
    return model.training and any(isinstance(p, float) and p > 0 for p in functional)


def _beside(model: nn.Module, learning: list[nn.Module]) -> bool:
    """A copy of what learns: the same class, or the same number of parameters."""
    return any(
        type(model) is type(m) or _size(model) == _size(m) for m in learning if m is not model
    )


def _shares(model: nn.Module, learning: list[nn.Module]) -> bool:
    own = {id(p) for p in model.parameters()}
    return any(id(p) in own for m in learning for p in m.parameters())


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def _nodes(loss: Tensor) -> set[Any]:
    seen: set[Any] = set()
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
    return seen

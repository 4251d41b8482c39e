"""Reinforcement learning and preferences: who computed which log-probabilities, and what stays fixed."""

from __future__ import annotations

import re
import sys
import weakref
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.lessons.copies import Copies
from fallline.lessons.lesson import Observation, keep, note
from fallline.lessons.scored import (
    Agreement,
    ModelRef,
    Sampling,
    Scored,
    agreement,
    logits_of,
    state_of,
    taken,
)
from fallline.location import Location
from fallline.replay.modules import variables
from fallline.taps.frames import user_frames

__all__ = ["Numbers", "Policies"]

_KEPT = 64  # passes, and texts that are written, that are remembered
_LONGEST = 2_048  # tokens of a text that is followed while it is written
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
    """Follows forward passes over the same tokens, with and without gradients. They are compared when all of them are here."""

    def __init__(self, copies: Copies, largest: int) -> None:
        """`largest`: logits of one pass that are still looked at."""
        self._copies = copies
        self._largest = largest
        self.passes: list[Scored] = []
        self.sampling: list[Sampling] = []
        # over tokens, without gradients: dropout active?
        self.fixed: list[tuple[ModelRef, Location | None, bool]] = []
        self.quiet: list[tuple[ModelRef, Location | None]] = []  # called without gradients
        self.readers: set[int] = set()  # models that were called with tokens
        self.update = 0
        self.numbers = Numbers()
        self.observed: list[Observation] = []
        # of the variables beside the backward that say what kind of loop it is
        self.names: set[str] = set()
        self._pending: tuple[Scored, Tensor] | None = None  # and its tokens where the model is
        self._writing: Sampling | None = None
        self._rows: list[Tensor] = []

    @property
    def samples(self) -> bool:
        """The run writes texts with the model that it trains, or its variables say that it rewards them."""
        return bool(self.sampling) or bool(self.names)

    def begins(self, model: nn.Module, bound: dict[str, Any], at: Location | None) -> None:
        """`bound`: what the model is called with, by name."""
        called, graph = weakref.ref(model), torch.is_grad_enabled()
        self._pending = None
        if not graph and not any(called == m for m, _ in self.quiet):
            self.quiet.append((called, at))
        ids = _tokens(bound)
        if ids is None:
            return
        self.readers.add(id(model))
        if len(self.passes) >= _KEPT:
            return
        own = self._copies.of(ids.long())
        if own is None:
            return
        mask = bound.get("attention_mask")
        fits = isinstance(mask, Tensor) and mask.shape == ids.shape
        real = self._copies.of(mask != 0) if isinstance(mask, Tensor) and fits else None
        dropping = _drops(model)
        call = Scored(called, own, real, graph, state_of(model), dropping, self.update, at)
        self._pending = call, ids
        if not graph and not any(called == m for m, _, _ in self.fixed):
            self.fixed.append((called, at, dropping))

    def ends(self, model: nn.Module, output: Any) -> None:
        pending, self._pending = self._pending, None
        if pending is None or pending[0].model() is not model:
            return
        call, ids = pending
        if not call.graph and self._continues(call, ids, output):
            return
        if call.graph and not self.sampling and not self._seen_before(call):
            return  # nothing to compare it with
        logp, call.dtype = taken(output, ids, self._largest)
        call.logp = None if logp is None else self._copies.of(logp)
        if call.logp is not None:
            self.passes.append(call)
            if call.graph:
                self._weigh(output)

    def _seen_before(self, call: Scored) -> bool:
        return any(not p.graph and p.ids.shape == call.ids.shape for p in self.passes)

    def _continues(self, call: Scored, ids: Tensor, output: Any) -> bool:
        """Whether this pass writes the next token of a text."""
        logits = logits_of(output)
        if logits is None:
            return False
        last = logits.detach()[:, -1].float().log_softmax(-1)
        writing = self._writing
        if writing is not None and self._writes_on(writing, call):
            self._chosen(writing, ids[:, -1], call.ids[:, -1])
            writing.last = last
            if len(writing.written) == 1:
                self.sampling = [*self.sampling, writing][-_KEPT:]
            return True
        self._writing = Sampling(
            call.model, call.ids, call.state, call.dropping, call.update, call.at, last, dtype=logits.dtype
        )  # fmt: skip
        return False

    def _writes_on(self, writing: Sampling, call: Scored) -> bool:
        rows, length = call.ids.shape
        expected = writing.prompt.shape[1] + len(writing.written) + 1
        same = writing.model == call.model and writing.prompt.shape[0] == rows
        return same and length in (1, expected) and len(writing.written) < _LONGEST

    def _chosen(self, writing: Sampling, on_device: Tensor, tokens: Tensor) -> None:
        """The token that was drawn from the last distribution, and its log-probability."""
        assert writing.last is not None
        at = on_device.long().clamp(0, writing.last.shape[1] - 1)[:, None]
        logp = self._copies.of(writing.last.gather(1, at)[:, 0])
        if logp is not None:
            writing.chosen.append(logp)
            writing.written.append(tokens)

    def _weigh(self, output: Any) -> None:
        fused = getattr(output, "log_probs", None)
        tensor = fused if isinstance(fused, Tensor) else logits_of(output)
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: Tensor) -> None:
        largest = gradient.detach().abs().reshape(gradient.shape[0], -1).amax(1)
        kept = self._copies.of(largest)
        if kept is not None:
            self._rows.append(kept)

    # -- when the copies are here ------------------------------------------------------------------------------

    def compare(self) -> None:
        """Each pass with gradients, with what was computed of the same tokens before."""
        self._writing = None
        for number, call in enumerate(self.passes):
            if call.graph and call.logp is not None:
                self._compare(call, self.passes[:number])
        if self._rows and self.samples:
            self.numbers.still = float((torch.cat(self._rows) == 0).double().mean())

    def _compare(self, call: Scored, earlier: list[Scored]) -> None:
        for writer in reversed(self.sampling):
            before = writer.scored(call.ids) if writer.update <= call.update else None
            if before is not None:
                self._met("sampler", writer, before, call)
                break
        for known in reversed(earlier):
            if not known.graph and known.logp is not None and torch.equal(known.ids, call.ids):
                same = known.model == call.model and known.state == call.state
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

    def backward_begins(self, at: Location | None) -> None:
        """Look at the variables beside the backward: what is called an advantage must be a constant."""
        for frame in user_frames(sys._getframe())[:2]:
            if not _may_name(frame.f_code):
                continue
            names = variables(frame)
            self.names |= {n for n, v in names.items() if _RL.match(n) and isinstance(v, Tensor)}
            constants = {n: v for n, v in names.items() if _CONSTANT.match(n) and _has_graph(v)}
            losses = {n: v for n, v in names.items() if _POLICY_LOSS.match(n) and _has_graph(v)}
            for loss_name, loss in losses.items():
                nodes = _nodes(loss)
                for name, value in constants.items():
                    if value.grad_fn in nodes:
                        keep(self.observed, note("FL023", at, variable=name, loss=loss_name))

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
        for held, at, dropping in self.fixed:
            model = held()
            if model is None or not dropping:
                continue
            if _beside(model, learning) and not _shares(model, learning):
                found.append(note("FL021", at, why="dropout", model=type(model).__name__))
        # elsewhere a network that only hands gradients on is common: a perceptual loss, a frozen critic
        for model, at in trained if self._copies.waits else self._language_models(trained):
            gets = any(id(p) in reached for p in model.parameters())
            if gets and learning and not any(id(p) in optimized for p in model.parameters()):
                found.append(note("FL021", at, why="gradient", model=type(model).__name__))
        return found

    def _language_models(
        self, trained: list[tuple[nn.Module, Location | None]]
    ) -> list[tuple[nn.Module, Location | None]]:
        return [(model, at) for model, at in trained if id(model) in self.readers]


def _may_name(code: CodeType) -> bool:
    """Whether a frame of this code may have such variables. To read those of a function makes its frame keep all of them alive."""
    if not code.co_flags & CO_OPTIMIZED:
        return True  # a module's, which are its globals
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return any(p.match(n) for n in names for p in (_RL, _CONSTANT, _POLICY_LOSS))


def _why(known: Scored | Sampling, call: Scored) -> str:
    if known.dropping != call.dropping or (known.dropping and call.dropping):
        return "dropout"
    if known.model != call.model:
        return "another model"
    if known.dtype != call.dtype:
        return "another number format"
    return "unknown"


def _tokens(bound: dict[str, Any]) -> Tensor | None:
    """The tokens that a model is called with: whole numbers, a row for each text."""
    ids = bound.get("input_ids")
    if ids is None:
        ids = next((v for v in bound.values() if isinstance(v, Tensor) and v.dim() == 2), None)
    text = isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point()
    return ids if text else None


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

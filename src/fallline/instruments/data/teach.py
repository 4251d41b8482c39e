"""From what was heard of a run, or from batches that were handed over, to what they teach."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch import Tensor, nn

from fallline.instruments.data.align import align
from fallline.instruments.data.leaks import leak_observations, repeated, worker_observations
from fallline.instruments.data.learns import Learner
from fallline.instruments.data.lesson import IGNORED, Given, Lesson, Observation, note
from fallline.instruments.data.observe import Listener, copied
from fallline.instruments.data.packed import is_causal, packing_observations
from fallline.instruments.data.plain import plain_observations, plain_of
from fallline.instruments.data.report import Taught, shown
from fallline.instruments.data.supervised import text_observations
from fallline.instruments.data.words import Words, words_of
from fallline.instruments.observer import Ran
from fallline.location import Location

__all__ = ["data_of_batches", "taught"]

_SHIFTING = ("CausalLM", "LMHeadModel", "ConditionalGeneration", "DoubleHeadsModel")


def taught(listener: Listener, tokenizer: Any, ran: Ran) -> Taught:
    """When the run is over: nothing that is asked now can change it."""
    model = listener.learner.models[0][0] if listener.learner.models else None
    held = listener.held
    chosen = tokenizer if tokenizer is not None else held.tokenizer if held is not None else None
    words = words_of(chosen, _config_holder(model))
    lessons = listener.lessons
    observed = [*listener.observed, *_of_lessons(lessons, words, model)]
    learner = listener.learner
    observed += learner.observations()
    observed += listener.policies.observations(learner.optimized(), learner.reached, learner.models)
    observed += _without_gradient(listener)
    at = lessons[0].at if lessons else None
    if listener.loader is not None:
        observed += leak_observations(held, listener.loader._dataset, at)
        observed += worker_observations(lessons, listener.loader, at)
    return Taught(
        samples=shown(lessons, words),
        observed=observed,
        lessons=lessons,
        words=words,
        learning=learner.learning(),
        plain=plain_of(lessons),
        repeated=repeated(lessons),
        policy=listener.policies.numbers,
        rewarded=listener.policies.samples,
        losses=listener.losses,
        updates=ran.updates,
        partial=ran.partial,
        status=ran.status,
    )


def _of_lessons(lessons: list[Lesson], words: Words, model: nn.Module | None) -> list[Observation]:
    for lesson in lessons:
        align(lesson, shifts_itself=_shifts(model), seq2seq=_is_seq2seq(model))
        if lesson.shift == -1 and model is not None:
            lesson.causal = is_causal(lesson, model)
    found = text_observations(lessons, words) + packing_observations(lessons, model)
    return found + plain_observations(lessons)


def _without_gradient(listener: Listener) -> list[Observation]:
    """A policy that is optimized and never reached, or a loss without a graph, in a loop that rewards what it samples."""
    learner, policies = listener.learner, listener.policies
    if not policies.samples:
        return []
    called = [*learner.models, *policies.quiet]
    for model, at in called:
        own = {id(p) for p in model.parameters() if p.requires_grad}
        if own & learner.optimized() and learner.backwards and not own & learner.reached:
            return [note("FL022", learner.loss_at or at, model=type(model).__name__)]
    if called and learner.error is not None and "does not require grad" in str(learner.error):
        model, at = called[0]
        return [note("FL022", learner.loss_at or at, model=type(model).__name__)]
    return []


def _shifts(model: nn.Module | None) -> bool:
    """Whether a model shifts the labels it is given: Transformers' language models do."""
    if model is None:
        return True
    names = [type(m).__name__ for m in (model, *_inner(model))]
    return any(part in name for name in names for part in _SHIFTING) and not _is_seq2seq(model)


def _inner(model: nn.Module) -> list[nn.Module]:
    """What an adapter model or a wrapper holds."""
    found = []
    get = getattr(model, "get_base_model", None)
    if get is not None:
        found.append(get())
    found += [m for m in (getattr(model, "pretrained_model", None),) if isinstance(m, nn.Module)]
    return found


def _is_seq2seq(model: nn.Module | None) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _config_holder(model: nn.Module | None) -> nn.Module | None:
    inner = _inner(model) if model is not None else []
    return inner[0] if inner else model


def data_of_batches(
    batches: Iterable[Any],
    tokenizer: Any,
    model: nn.Module | None,
    at: Location | None,
    most: int = 4,
) -> Taught:
    """What batches teach that nobody has trained on yet: a loader, a list, or one batch's dictionary."""
    taken = (
        [batches]
        if isinstance(batches, dict) or hasattr(batches, "keys")
        else islice(batches, most)
    )
    lessons = [_lesson(copied(batch), at, model) for batch in taken]
    words = words_of(tokenizer, _config_holder(model))
    learner = Learner()
    return Taught(
        samples=[],
        observed=_of_lessons(lessons, words, model),
        lessons=lessons,
        words=words,
        learning=learner.learning(),
        plain=plain_of(lessons),
        repeated=repeated(lessons),
    )._with_samples()


def _lesson(batch: Any, at: Location | None, model: nn.Module | None) -> Lesson:
    name = type(model).__name__ if model is not None else ""
    if isinstance(batch, dict):
        return Lesson(at, name, batch, batch)
    parts = batch if isinstance(batch, list | tuple) else [batch]
    lesson = Lesson(at, name, {"input_ids" if _is_ids(parts[0]) else "input": parts[0]}, batch)
    if len(parts) > 1 and isinstance(parts[1], Tensor):
        lesson.given = [_compared(parts[1], at)]
    return lesson


def _compared(target: Tensor, at: Location | None) -> Given:
    """What a loss of the usual kind would be given: classes, or numbers."""
    if target.is_floating_point():
        return Given("mse_loss", target, tuple(target.shape), "mean", None, at)
    classes = max(2, int(target.max()) + 1) if target.numel() else 2
    return Given("cross_entropy", target, (target.numel(), classes), "mean", IGNORED, at)


def _is_ids(thing: Any) -> bool:
    return isinstance(thing, Tensor) and not thing.is_floating_point() and thing.dim() == 2

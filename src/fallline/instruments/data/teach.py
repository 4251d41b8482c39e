"""From what was heard of a run, or from batches that were handed over, to what they teach."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch import Tensor, nn

from fallline.instruments.data.observe import Hearing
from fallline.instruments.data.report import Taught, shown
from fallline.instruments.observer import Ran
from fallline.lessons.copies import Copies
from fallline.lessons.judge import config_holder, learning_observations, probing_observations
from fallline.lessons.leaks import leak_observations, repeated, worker_observations
from fallline.lessons.learns import Learner
from fallline.lessons.lesson import IGNORED, Given, Lesson, Observation
from fallline.lessons.listen import copied
from fallline.lessons.plain import plain_observations, plain_of
from fallline.lessons.words import Words, words_of
from fallline.location import Location

__all__ = ["data_of_batches", "taught"]

_LARGEST = 50_000_000  # numbers in one tensor that are still copied


def taught(heard: Hearing, tokenizer: Any, ran: Ran) -> Taught:
    """When the run is over: nothing that is asked now can change it."""
    listener, held = heard.listener, heard.held
    listener.arrive()
    learner, lessons = listener.learner, listener.lessons
    model = learner.models[0][0] if learner.models else None
    chosen = tokenizer if tokenizer is not None else held.tokenizer if held is not None else None
    words = words_of(chosen, config_holder(model))
    observed = [*listener.observed, *_of_lessons(lessons, words, model)]
    observed += learning_observations(listener, words)
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
    return probing_observations(lessons, words, model) + plain_observations(lessons)


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
    copies = Copies(waits=True, largest=_LARGEST)
    lessons = [_lesson(copied(batch, copies), at, model) for batch in taken]
    words = words_of(tokenizer, config_holder(model))
    learner = Learner(copies)
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

"""From what was heard of a run to what is wrong with it: observations, each with a code and a place."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fallline.lessons.align import align
from fallline.lessons.lesson import Lesson, Observation, note
from fallline.lessons.listen import Listener
from fallline.lessons.packed import is_causal, packing_observations
from fallline.lessons.supervised import text_observations
from fallline.lessons.words import Words

__all__ = ["config_holder", "learning_observations", "lesson_observations", "probing_observations"]

_SHIFTING = ("CausalLM", "LMHeadModel", "ConditionalGeneration", "DoubleHeadsModel")


def lesson_observations(
    lessons: Sequence[Lesson], words: Words, model: nn.Module | None
) -> list[Observation]:
    """What the tokens and their labels show by themselves. The model is only looked at."""
    for lesson in lessons:
        align(lesson, shifts_itself=_shifts(model), seq2seq=_is_seq2seq(model))
        lesson.causal = False if lesson.shift == -1 else None  # in doubt, until it is asked
    return text_observations(lessons, words)


def probing_observations(
    lessons: Sequence[Lesson], words: Words, model: nn.Module | None
) -> list[Observation]:
    """The same, asking the model where it must be asked: it is called again, so only when the run is over."""
    for lesson in lessons:
        align(lesson, shifts_itself=_shifts(model), seq2seq=_is_seq2seq(model))
        if lesson.shift == -1 and model is not None:
            lesson.causal = is_causal(lesson, model)
    return text_observations(lessons, words) + packing_observations(lessons, model)


def learning_observations(listener: Listener, words: Words) -> list[Observation]:
    """What cannot learn: adapters, new rows, policies; and what should not."""
    learner, policies = listener.learner, listener.policies
    found = [o for o in learner.observations() if o["code"] != "FL018" or _says_something(o, words)]
    found += policies.observations(learner.optimized(), learner.reached, learner.models)
    return found + _without_gradient(listener)


def _says_something(new_rows: Observation, words: Words) -> bool:
    """Whether new rows of an embedding belong to tokens that mean anything: padding, or rows beyond the vocabulary, do not."""
    if words.size is None:
        return True
    tokens = set(range(new_rows["before"], min(new_rows["after"], words.size)))
    return bool(tokens - {words.pad})


def _without_gradient(listener: Listener) -> list[Observation]:
    """A policy that is optimized and never reached, or a loss without a graph, in a loop that rewards what it samples."""
    learner, policies = listener.learner, listener.policies
    if not policies.samples:
        return []
    called = [*learner.models, *((m, at) for held, at in policies.quiet if (m := held()))]
    updated = learner.updated()
    for model, at in called:
        own = {id(p) for p in model.parameters() if p.requires_grad}
        if own & updated and learner.backwards and not own & learner.reached:
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


def config_holder(model: nn.Module | None) -> nn.Module | None:
    inner = _inner(model) if model is not None else []
    return inner[0] if inner else model

"""What is asked about a file again and again is found once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from fallline.syntax.module import Module

__all__ = ["once"]

P = ParamSpec("P")
T = TypeVar("T")


def once(
    answer: Callable[Concatenate[Module, P], T],
) -> Callable[Concatenate[Module, P], T]:
    """A question about a file, or about something in it: each is answered once, and the answer is kept as long as the file is."""
    question = f"{answer.__module__}.{answer.__qualname__}"

    @wraps(answer)
    def kept(module: Module, /, *about: P.args, **named: P.kwargs) -> T:
        known = module.notes(question)
        if about not in known:
            known[about] = answer(module, *about, **named)
        found: T = known[about]
        return found

    return kept

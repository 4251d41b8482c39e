"""The tokenizer of a run, as its own frames show it.

Not by asking the garbage collector for all objects: while another thread is making a tuple, that breaks the tuple.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from fallline.replay.modules import variables

__all__ = ["tokenizer_on_stack"]

_NAMES = ("processing_class", "tokenizer", "tok", "processor")
_DEPTH = 60  # frames


def tokenizer_on_stack(frame: FrameType | None, loader: Any = None) -> Any:
    """Of Transformers (or of `tokenizers`): a trainer's, what the loader collates with, or a variable's."""
    kinds = _kinds()
    if not kinds:
        return None
    for thing in _candidates(frame, loader):
        if isinstance(thing, kinds):
            return thing
        inner = _own(thing, "tokenizer")  # a processor has one
        if isinstance(inner, kinds):
            return inner
    return None


def _kinds() -> tuple[type, ...]:
    base = sys.modules.get("transformers.tokenization_utils_base")
    raw = sys.modules.get("tokenizers")
    found = [getattr(base, "PreTrainedTokenizerBase", None), getattr(raw, "Tokenizer", None)]
    return tuple(kind for kind in found if isinstance(kind, type))


def _candidates(frame: FrameType | None, loader: Any) -> Iterator[Any]:
    collate = getattr(loader, "_collate_fn", None)
    yield from _held_by(collate)
    for one in _frames(frame):
        names = variables(one)
        yield from (_own(names.get("self"), name) for name in _NAMES)
        yield from names.values()
        if one.f_globals.get("__name__") == "__main__":
            yield from list(one.f_globals.values())


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _own(thing: Any, name: str) -> Any:
    """An attribute that is simply there: asking for any other would run the script's code."""
    try:
        return vars(thing).get(name)
    except TypeError:
        return None


def _held_by(function: Any) -> Iterator[Any]:
    """What a collate function holds: its attributes, its closure, the arguments of a partial."""
    if function is None:
        return
    yield from (_own(function, name) for name in _NAMES)
    yield from getattr(function, "args", ()) or ()
    yield from (getattr(function, "keywords", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    wanted = getattr(getattr(function, "__code__", None), "co_names", ())
    around = getattr(function, "__globals__", {})
    yield from (around[name] for name in wanted if name in around)

"""Every operation in the order it ran: what went in and what came out, as fingerprints, and between them the draws of the user's code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.instruments.same.fingerprint import Fingerprint, fingerprint, resolve, together
from fallline.instruments.where import user_line
from fallline.location import Location
from fallline.replay.tensors import plain_name, storage, tensors_in

__all__ = ["MOST", "Operations"]

MOST = 200_000  # operations and draws of one run; memory and time are not endless
_UNWRITTEN = {
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_memory_format",
}
_TOLD = (bool, int, float, complex, str, torch.dtype, torch.device)
_LONGEST = 200
_clock = time.perf_counter  # the real one, also where the script's is pinned


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A list of operations: name, phase, place, arguments, fingerprints before and after, and whether it draws random numbers."""

    def __init__(self, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.full = False
        self._seconds = seconds  # that may be spent here
        self._entries: list[dict[str, Any]] = []
        self._waiting: list[Fingerprint] = []
        self._count = 0
        self._unwritten: set[int] = set()  # storages that nobody has written to yet
        self._on = False
        self._set_aside = 0

    def begin(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        self._on = True

    def end(self) -> None:
        """Nothing more is written down. It stays in place: a mode of the script's own may be on top of it."""
        self._on = False

    def leave(self) -> None:
        """The script is over, and so are its modes."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done inside is not the script's."""
        self._set_aside += 1
        begun = _clock()
        try:
            yield
        finally:
            self._set_aside -= 1
            self._seconds -= _clock() - begun

    def drawn(self, source: str, at: Location, state: int) -> None:
        if self._room():
            self._entries.append({"draw": source, "path": at.path, "line": at.line, "state": state})

    def _room(self) -> bool:
        self._count += 1
        self.full = self.full or self._count > MOST or self._seconds < 0
        return not self.full

    @property
    def position(self) -> int:
        """How many entries there are since they were taken last."""
        return len(self._entries)

    def taken(self) -> list[dict[str, Any]]:
        """What has been written down since it was asked for last."""
        with self.aside():
            found = resolve(self._waiting)
        for entry in self._entries:
            for name in ("given", "made", "generator"):
                if name in entry:
                    entry[name] = found[entry[name]]
        taken, self._entries, self._waiting = self._entries, [], []
        return taken

    def _later(self, part: Fingerprint) -> int:
        self._waiting.append(part)
        return len(self._waiting) - 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            not self._on
            or self._set_aside
            or not self._room()
            or not all(_is_plain(t) for t in types)
        ):
            return func(*args, **kwargs)
        with self.aside():
            given = list(tensors_in((args, kwargs)))
            fresh = [t for t in given if storage(t) in self._unwritten]
            entry = self._before(func, args, kwargs, given, fresh)
        result = func(*args, **kwargs)
        with self.aside():
            self._after(func, entry, given, fresh, list(tensors_in(result)))
        return result

    def _before(
        self, func: Any, args: Any, kwargs: Any, given: list[Tensor], fresh: list[Tensor]
    ) -> dict[str, Any]:
        # what an operation overwrites is not an input, as long as nobody had written it
        read = [t for t in given if not any(t is f for f in fresh)]
        entry: dict[str, Any] = {
            "op": plain_name(func._schema.name),
            "phase": self.phase,
            "arguments": _plain(args, kwargs),
            "given": together(fingerprint(t) for t in read),
        }
        if fresh and not func._schema.is_mutable:
            entry["unwritten"] = True
        if torch.Tag.nondeterministic_seeded in func.tags:
            entry["random"] = True
            entry["generator"] = _generator(args, kwargs)
        return entry

    def _after(
        self,
        func: Any,
        entry: dict[str, Any],
        given: list[Tensor],
        fresh: list[Tensor],
        made: list[Tensor],
    ) -> None:
        name = func._schema.name.rpartition("::")[2]
        if name == "set_":
            return  # a tensor over memory that another process, or numpy, has filled: data, and no operation
        if name in _UNWRITTEN:
            self._unwritten.update(storage(t) for t in made)
            return
        shared = {storage(t) for t in given}
        if not func._schema.is_mutable:
            if made and all(storage(t) in shared for t in made):
                made = []  # a view of what was there: no new bits
                if not entry["arguments"]:
                    return
        elif not made:
            made = given  # `_foreach_add_` returns nothing: what it was given is what it made
        for tensor in made:
            self._unwritten.discard(storage(tensor))
        entry["made"] = together(fingerprint(t) for t in made)
        for name in ("given", "made", "generator"):
            if name in entry:
                entry[name] = self._later(entry[name])
        entry["shapes"] = [list(t.shape) for t in made[:3]]
        at = user_line()
        entry["path"], entry["line"] = (at.path, at.line) if at is not None else ("", 0)
        self._entries.append(entry)


def _is_plain(kind: type) -> bool:
    return kind is Tensor or kind is torch.nn.Parameter


def _generator(args: Any, kwargs: Any) -> Fingerprint:
    """The state that the random numbers come from."""
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator):
        return fingerprint(generator.get_state())
    device = next((t.device for t in tensors_in((args, kwargs))), kwargs.get("device"))
    if device is not None and torch.device(device).type == "cuda":
        return fingerprint(torch.cuda.get_rng_state(device))
    return fingerprint(torch.get_rng_state())


def _plain(args: Any, kwargs: Any) -> str:
    """Arguments that are not tensors, as text: a number that came from Python may be what differs."""
    values = [
        *_flat(args),
        *(part for key in sorted(kwargs) for part in (key, *_flat(kwargs[key]))),
    ]
    return ", ".join(values)[:_LONGEST]


def _flat(thing: Any) -> list[str]:
    if isinstance(thing, list | tuple):
        return [part for item in thing for part in _flat(item)]
    return [repr(thing)] if isinstance(thing, _TOLD) else []

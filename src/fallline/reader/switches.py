"""The settings of a program that are not known from its text, and which of them to try.

A switch is a test that cannot be decided (`if args.amp`) and has one value for a whole trace; an assumed number is
an unknown count (`args.accumulation_steps`), small for all of a trace. The first trace takes the usual way at each;
every further one flips what made a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

__all__ = ["Settings", "explore"]

_MOST_TRACES = 16
USUAL_COUNT = 2


@dataclass
class Settings:
    """The choices of one trace: those forced from outside, and those met on the way."""

    forced: dict[str, int] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)
    matter: dict[str, int] = field(default_factory=dict)  # choices worth flipping, and how much
    flipped: int = 2  # how much the flipped choices matter, the least of them
    failed: bool = False  # the program refused these settings
    outline: int = 0  # what happened in the trace, filled in by who ran it
    edited: list[str] = field(default_factory=list)  # what is not as it is written, in words
    _values: dict[str, object] = field(
        default_factory=dict
    )  # unknown text → the value it has in this trace
    _not: dict[str, set[object]] = field(default_factory=dict)  # and those it has not

    def switch(
        self, key: str, usual: bool, matters: int = 2, everywhere: bool | None = None
    ) -> bool:
        """The value of a switch in this trace. `matters`: 0 not worth flipping, 1 perhaps, 2 the protocol is right here.

        `everywhere`: what the whole project has, so that only those who change it see the other way.
        """
        if everywhere is not None:
            usual = everywhere
        # a device is a GPU first: what a CPU does otherwise comes second
        value = bool(self.forced.get(key, usual and not key.endswith("== 'cpu'")))
        self.met.setdefault(key, int(value))
        if matters:
            self.matter[key] = max(self.matter.get(key, 0), matters)
        self._edit(
            f"`{key}` is {'true' if value else 'false'}; the option is 0 everywhere",
            everywhere is not None and value is not everywhere,
        )
        # every card since 2020 has it
        self._edit("the device has no bfloat16", "is_bf16_supported" in key and not value)
        return value

    def knob(self, name: str, written: bool) -> bool:
        """A constant of a script that people edit by hand: as it is written first, then the other way."""
        value = self.switch(name, written)
        self._edit(f"`{name}` is changed", value is not written)
        return value

    def _edit(self, words: str, edited: bool) -> None:
        if edited and words not in self.edited:
            self.edited.append(words)

    def count(
        self, key: str, *, compared: bool = False, usual: int = USUAL_COUNT, one: bool = False
    ) -> int:
        """A small number for an unknown count. `compared` when a test asks whether it is one or more.

        `one`: nobody shows it above 1, so that it is 1 first, and what happens otherwise is for those who change it.
        """
        value = self.forced.get("#" + key, 1 if one else usual)
        self.met.setdefault("#" + key, value)
        if compared or one:
            self.matter["#" + key] = 2
        self._edit(f"`{key}` is above 1; it is 1 by default", one and value > 1)
        return value

    def equals(self, key: str, wanted: Collection[object], usual: bool, matters: int = 2) -> bool:
        """Whether something unknown is one of these values: it has one value, so it cannot be two of them."""
        said = f"{key} == {' or '.join(repr(value) for value in wanted)}"[:120]
        if key in self._values:
            if self._values[key] not in wanted and matters > 1:
                # what another value does here is worth a trace in which it has that value from the start
                self.met.setdefault(said, 0)
                self.matter[said] = matters
            return self._values[key] in wanted
        left = [value for value in wanted if value not in self._not.get(key, ())]
        if not left:
            return False
        meant = self._forced_value(key)
        fits = [value for value in left if repr(value) in meant] if meant else left
        if not fits:
            chosen = False
        else:
            chosen = self.switch(said, usual or bool(meant), matters)
        if chosen:
            self._values[key] = fits[0]
        else:
            self._not.setdefault(key, set()).update(wanted)
        return chosen

    def _forced_value(self, key: str) -> str:
        """The words for the value that this trace is about; empty where it is about none."""
        start = f"{key} == "
        forced = (k for k, value in self.forced.items() if value and k.startswith(start))
        return next(forced, "").removeprefix(start)

    def words(self) -> list[str]:
        """The settings as a person would say them."""
        return [
            f"{key[1:]} = {value}"
            if key.startswith("#")
            else f"{key} is {'true' if value else 'false'}"
            for key, value in self.met.items()
            if self.matter.get(key, 0) > 1
        ]


def explore(first: Settings) -> Iterator[Settings]:
    """Settings to try: the usual one, each choice flipped alone, then in pairs, and so on; bounded.

    The caller runs a trace with each and lets it fill in `met`, `matter` and `outline`. A choice that changed nothing
    when it was flipped is flipped once more, with all others like it (each may stand in for another), and not in pairs.
    """
    yield first
    queue: list[tuple[Settings, frozenset[str]]] = [(first, frozenset())]
    produced = 1
    seen = {_key(first.forced)}
    while queue and produced < _MOST_TRACES:
        base, idle = queue.pop(0)
        choices = [
            k for k in base.met if k in base.matter and k not in base.forced and k not in idle
        ]
        children = []
        for key in sorted(choices, key=lambda k: -base.matter[k]):
            forced = {**base.forced, key: _other(key, base.met[key])}
            if _key(forced) in seen or produced >= _MOST_TRACES:
                continue
            seen.add(_key(forced))
            settings = Settings(forced, flipped=min(base.flipped, base.matter[key]))
            yield settings
            produced += 1
            if settings.failed:
                continue  # with anything else flipped beside it, it is refused as well
            if settings.outline == base.outline and settings.matter.keys() <= base.matter.keys():
                idle |= {key}
            else:
                children.append(settings)
        alike = {k: _other(k, base.met[k]) for k in choices if k in idle and base.matter[k] > 1}
        if base is first and len(alike) > 1 and produced < _MOST_TRACES:
            seen.add(_key(alike))
            children.append(Settings(alike, flipped=base.flipped))
            yield children[-1]
            produced += 1
        queue += [(child, idle) for child in children]


def _other(key: str, value: int) -> int:
    if key.startswith("#"):
        return 1 if value != 1 else USUAL_COUNT
    return 1 - value


def _key(forced: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(forced.items()))

"""What the experiments measured when they were last recorded: read by documents, answers, reports and editors. Needs no torch.

`evidence.json` beside this file is the record. `make evidence` measures it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from fallline.errors import UsageError
from fallline.specialists import Specialist, specialist_in
from fallline.untrusted import parse_json

__all__ = ["HERE", "Outcome", "all_recorded", "parse", "read", "recorded", "written"]

HERE = Path(__file__).with_name("evidence.json")
FORMAT = 1

Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One experiment, and what came of it."""

    of: str  # a rule's code or a fact's name
    name: str  # what people call it: the rule's name, or the fact's again
    room: str
    claim: str
    taught: str = ""
    needs: str = ""
    verdict: str = "failed"  # proved, refuted, failed (raised, died, took too long), unavailable
    problem: str = ""  # why it failed, or what it needs that is not here
    conclusion: str = ""
    sides: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    holds: Mapping[str, bool] = field(default_factory=dict)
    curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    axes: Sequence[str] = ("", "")
    positions: Sequence[float] = ()
    seconds: float = 0.0
    machine: str = ""
    torch: str = ""

    @property
    def is_rule(self) -> bool:
        return bool(re.fullmatch(r"FL\d{3}", self.of))

    @property
    def specialist(self) -> Specialist:
        return specialist_in(self.room)

    @property
    def measured(self) -> bool:
        return self.verdict in {"proved", "refuted"}

    @property
    def says(self) -> str:
        """The conclusion with a capital and a full stop; a name out of code keeps its small letter."""
        first = self.conclusion.split(" ", 1)[0]
        ordinary = first.isalpha() and first.islower()
        text = self.conclusion
        return (text[:1].upper() + text[1:] if ordinary else text).rstrip(".") + "."

    @property
    def anchor(self) -> str:
        """Where it is in docs/evidence.md."""
        return self.of.lower()

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: what is not finite becomes a word in a table and a gap in a curve."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["sides"] = {
            side: {quantity: _plain(value) for quantity, value in values.items()}
            for side, values in self.sides.items()
        }
        found["curves"] = {name: [_point(y) for y in ys] for name, ys in self.curves.items()}
        found["positions"] = [_point(x) for x in self.positions]
        found["axes"] = list(self.axes)
        found["seconds"] = round(self.seconds, 2)
        return {k: v for k, v in found.items() if v not in ("", [], {}, ["", ""])}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Outcome:
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in given.items() if k in known})


def _plain(value: Value) -> Value:
    if isinstance(value, bool | str | int):
        return value
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    return float(f"{value:.6g}")


def _point(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def written(outcomes: Iterable[Outcome]) -> str:
    """The record as text: rules by code, then facts by name, and a list of numbers on one line."""
    ordered = sorted(outcomes, key=lambda o: (not o.is_rule, o.of))
    text = json.dumps(
        {"format": FORMAT, "experiments": [o.as_dict() for o in ordered]},
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )
    return (
        re.sub(r"\[\s+([-\d.,e+\snul]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
        + "\n"
    )


def parse(text: str, source: str) -> tuple[Outcome, ...]:
    """The outcomes in a record's text."""
    try:
        raw = parse_json(text)
        assert raw["format"] == FORMAT
        return tuple(Outcome.from_dict(d) for d in raw["experiments"])
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UsageError(
            f"{source} is not a record of experiments; `fallline prove --all --out DIR` writes one"
        ) from None


def read(path: Path) -> tuple[Outcome, ...]:
    """The outcomes in a file; none where there is no file."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


@cache
def all_recorded() -> Mapping[str, Outcome]:
    """The package's own record, by rule code and fact name."""
    return {outcome.of: outcome for outcome in read(HERE)}


def recorded(name: str) -> Outcome | None:
    """What was measured for a rule (by code) or a fact (by name)."""
    return all_recorded().get(name)

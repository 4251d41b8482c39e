"""One file for one mistake, in its specialist's room; and the registry of them.

A rule's file is named after its code and its name (`gradients/fl101_clip_after_step.py`), so that both are known
without importing it: a check of a file that cannot matter does not load a hundred rules to understand `--select FL1`.
"""

from __future__ import annotations

import os
from functools import cache

TYPE_CHECKING = False  # importing `typing` would cost the start-up more than this module does
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fallline.rule import Rule

__all__ = ["all_rules", "event_rules", "reader_rules", "rule_by_code", "rule_names", "series_rules"]


@cache
def rule_names() -> dict[str, str]:
    """Code → name of every rule, in order, from the names of the files."""
    return {
        code: module.rpartition(".")[2][6:].replace("_", "-") for code, module in _modules().items()
    }


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return tuple(_load(code) for code in _modules())


@cache
def reader_rules() -> tuple[Rule, ...]:
    """Those that look at source, by code; the others need the numbers of a run."""
    wanted = {*_with_method(b"check"), *_with_method(b"check_syntax")}
    return tuple(map(_load, sorted(wanted)))


@cache
def event_rules() -> tuple[Rule, ...]:
    """Those that look at events, by code; what a run needs while it is running, which is a third of all."""
    return tuple(map(_load, _with_method(b"check")))


def series_rules(observed: Iterable[str] = ()) -> tuple[Rule, ...]:
    """Those that look at a run's numbers, and those of these codes, which say what it was seen to do; by code."""
    wanted = {*_with_method(b"check_series"), *observed} & _modules().keys()
    return tuple(map(_load, sorted(wanted)))


@cache
def _with_method(name: bytes) -> tuple[str, ...]:
    """Codes of the rules whose files define this method, without importing them."""
    return tuple(c for c, text in _texts().items() if b"    def " + name + b"(self" in text)


@cache
def _texts() -> dict[str, bytes]:
    """Code → what is written in the rule's file."""
    home = os.path.dirname(__file__)
    found = {}
    for code, module in _modules().items():
        with open(os.path.join(home, *module.split(".")[2:]) + ".py", "rb") as file:
            found[code] = file.read()
    return found


def rule_by_code(code: str) -> Rule | None:
    """The rule with this code or name, in any case."""
    wanted = code.strip()
    for known, name in rule_names().items():
        if wanted.upper() == known or wanted.lower() == name:
            return _load(known)
    return None


@cache
def _load(code: str) -> Rule:
    """The rule that the file of this code defines."""
    from importlib import import_module

    module = import_module(_modules()[code])
    found = [t for t in vars(module).values() if isinstance(t, type) and _defines(t, module)]
    assert [t.code for t in found] == [code], f"{module.__name__} defines one rule, {code}"  # type: ignore[attr-defined]
    rule: Rule = found[0]()
    return rule


def _defines(thing: type, module: object) -> bool:
    return hasattr(thing, "code") and thing.__module__ == module.__name__  # type: ignore[attr-defined]


@cache
def _modules() -> dict[str, str]:
    """Code → module, of the files in the rooms that are named like rules."""
    found: dict[str, str] = {}
    home = os.path.dirname(__file__)
    for room in os.listdir(home):
        folder = os.path.join(home, room)
        for file in os.listdir(folder) if os.path.isdir(folder) else ():
            code, _, rest = file.upper().partition("_")
            if code.startswith("FL") and code[2:].isdigit() and rest.endswith(".PY"):
                assert code not in found, f"two rules claim {code}"
                found[code] = f"{__name__}.{room}.{file[:-3]}"
    return dict(sorted(found.items()))

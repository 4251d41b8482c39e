"""What a run folder may hold. It is somebody else's file until every field has been looked at: type, size and range.

`Damaged` says in words which field is not what it must be. All text comes out printable: nothing that was written into a run
reaches a terminal or a page as a control sequence.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fallline.finding import Finding
from fallline.runs.prints import INDICES, KINDS, Print
from fallline.runs.samples import WIDTH, Layout, ParameterInfo
from fallline.untrusted import parse_json, printable

__all__ = [
    "Damaged",
    "count",
    "finding",
    "fingerprint",
    "floats",
    "json_of",
    "layout",
    "meta",
    "object_of",
    "optional",
    "real",
    "seconds",
    "text",
]

_DEEPEST = 12  # levels of lists and objects
_LONGEST = 100_000  # characters of a text
_LATEST = 1e11  # seconds since 1970: what a clock can show
_ELEMENTS = 2**50  # of one parameter


class Damaged(ValueError):
    """A field is not what it must be."""


def text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise Damaged(f"{what} is not a string")
    return printable(value)


def count(value: Any, what: str, most: int = 2**53) -> int:
    """A whole number from 0."""
    if type(value) is not int or not 0 <= value <= most:
        raise Damaged(f"{what} is not a whole number")
    return value


def real(value: Any, what: str) -> float:
    """A number; "nan" is how the store writes NaN."""
    if value == "nan":
        return math.nan
    if type(value) not in (int, float) or (type(value) is int and abs(value) > 2**63):
        raise Damaged(f"{what} is not a number")
    return float(value)


def seconds(value: Any, what: str) -> float:
    """How long something took, or when it was (since 1970)."""
    found = real(value, what)
    if not 0 <= found < _LATEST:
        raise Damaged(f"{what} is not a time")
    return found


def optional(check: Callable[[Any, str], Any], value: Any, what: str) -> Any:
    return None if value is None else check(value, what)


def floats(blob: Any, kind: Literal["f", "d"], what: str) -> array[float]:
    """Numbers as the store packs them: `f` of four bytes, `d` of eight."""
    numbers: array[float] = array(kind)
    if not isinstance(blob, bytes) or len(blob) % numbers.itemsize:
        raise Damaged(f"{what} is not a list of numbers")
    numbers.frombytes(blob)
    return numbers


def json_of(body: Any, what: str) -> Any:
    """JSON of bounded depth, all its texts printable."""
    if not isinstance(body, str):
        raise Damaged(f"{what} is not a string")
    try:
        return _plain(parse_json(body), what, _DEEPEST)
    except Damaged:
        raise
    except ValueError as error:
        raise Damaged(f"{what} is not JSON: {printable(str(error))}") from None


def _plain(value: Any, what: str, deeper: int) -> Any:
    match value:
        case str():
            return printable(value)
        case int() if abs(value) > 2**63:
            raise Damaged(f"{what} holds a number that is too large")
        case list() | dict() if deeper == 0:
            raise Damaged(f"{what} is nested too deeply")
        case list():
            return [_plain(v, what, deeper - 1) for v in value]
        case dict():
            return {printable(k): _plain(v, what, deeper - 1) for k, v in value.items()}
    return value


def finding(value: Any, what: str) -> Finding:
    """A finding as `Finding.as_dict` writes it."""
    try:
        return Finding.from_dict(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{what} is not a finding ({error})") from None


def layout(id: int, described: Any) -> Layout:
    """The parameters of a sample, as the store writes them."""
    what = "a layout"
    if not isinstance(described, list) or not all(isinstance(p, dict) for p in described):
        raise Damaged(f"{what} is not a list of parameters")
    return Layout(id, [_parameter(p) for p in described])


def _parameter(known: Mapping[str, Any]) -> ParameterInfo:
    name = text(known.get("name"), "a parameter's name")
    shape = known.get("shape")
    if not isinstance(shape, list) or len(shape) > 64:
        raise Damaged(f"the shape of {name} is not a list of sizes")
    found = ParameterInfo(
        name,
        text(known.get("module"), f"the module of {name}"),
        count(known.get("depth"), f"the depth of {name}"),
        tuple(count(size, f"the shape of {name}") for size in shape),
        text(known.get("dtype"), f"the type of {name}"),
    )
    if found.count > _ELEMENTS:
        raise Damaged(f"the shape of {name} is not the shape of a tensor")
    return found


def sample(blob: Any, of: Layout) -> array[float]:
    values = floats(blob, "f", "a sample")
    if len(values) != WIDTH * len(of.parameters):
        raise Damaged("a sample does not fit its layout")
    return values


def fingerprint(row: tuple[Any, ...]) -> Print:
    """A row of the table `prints`."""
    kind, name, index, number, blob = row
    if kind not in KINDS:
        raise Damaged("a fingerprint is of an unknown kind")
    values = floats(blob, "d", "a fingerprint")
    if kind == INDICES and not all(math.isfinite(v) for v in values):
        raise Damaged("the index of a sample is not a number")
    place = count(index, "the number of an update"), count(number, "the number of a batch")
    return Print(kind, text(name, "the name of a fingerprint"), *place, values)


# -- what the run says about itself ------------------------------------------------------------------------------------


def meta(key: str, value: Any) -> Any:
    """One entry of the table `meta`. Keys that are not known here may hold any JSON; facts and totals are objects."""
    what = f"'{key}'"
    if value is None:
        return None
    if key in _KNOWN:
        return _KNOWN[key](value, what)
    if key.startswith("totals:"):
        return _totals(value, what)
    if key.startswith("groups:"):
        return _objects(value, what)
    if key.startswith("layout:"):
        return _layout(value, what)
    if "#" in key and not isinstance(value, dict):
        raise Damaged(f"{what} is not an object")
    return value


def _layout(value: Any, what: str) -> list[list[Any]]:
    """The parameters of an optimizer: name, shape and type of each."""
    if not isinstance(value, list) or not all(isinstance(p, list) and len(p) == 3 for p in value):
        raise Damaged(f"{what} is not a list of parameters")
    for name, shape, dtype in value:
        text(name, f"a parameter in {what}")
        if not isinstance(shape, list) or len(shape) > 64:
            raise Damaged(f"the shape of {name} is not a list of sizes")
        for size in shape:
            count(size, f"the shape of {name}")
        text(dtype, f"a type in {what}")
    return value


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list):
        raise Damaged(f"{what} is not a list")
    return [text(v, what) for v in value]


def _cells(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not an object")
    return {text(k, what): text(v, what) for k, v in value.items()}


def _observed(value: Any, what: str) -> list[dict[str, Any]]:
    for one in _objects(value, what):
        text(one.get("code"), f"code in {what}")
        text(one.get("path"), f"path in {what}")
        count(one.get("line"), f"line in {what}")
        count(one.get("column", 1), f"column in {what}")
        text(one.get("function", ""), f"function in {what}")
    return _objects(value, what)


def _objects(value: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise Damaged(f"{what} is not a list of objects")
    return value


def _findings(value: Any, what: str) -> list[dict[str, Any]]:
    for one in _objects(value, what):
        finding(one, what)
    return _objects(value, what)


def _totals(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not an object")
    counts = ("updates", "skipped", "clips", "clipped")
    found: dict[str, Any] = {
        name: count(value.get(name, 0), f"{name} of {what}") for name in counts
    }
    parts = value.get("seconds", {})
    if not isinstance(parts, dict):
        raise Damaged(f"seconds of {what} is not an object")
    found["seconds"] = {text(k, what): seconds(v, f"seconds of {what}") for k, v in parts.items()}
    return found


def _named(value: Any, what: str) -> dict[str, dict[str, Any]]:
    """Objects by name, such as the modules of a model."""
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise Damaged(f"{what} is not an object of objects")
    return value


def object_of(value: Any, what: str) -> dict[str, Any]:
    """This, if it is an object."""
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not an object")
    return value


def _code(value: Any, what: str) -> dict[str, Any]:
    found = object_of(value, what)
    for name, file in _named(found.get("files", {}), f"files of {what}").items():
        optional(_texts, file.get("lines"), f"lines of {name}")
    optional(text, found.get("commit"), f"commit of {what}")
    return found


def _options(value: Any, what: str) -> dict[str, Any]:
    found = object_of(value, what)
    object_of(found.get("values", {}), f"values of {what}")
    for name, lines in object_of(found.get("files", {}), f"files of {what}").items():
        _texts(lines, name)
    return found


def _ranks(value: Any, what: str) -> int:
    return count(value, what, 1_000_000)


_KNOWN: dict[str, Callable[[Any, str], Any]] = {
    "started": seconds, "ended": seconds, "rank": _ranks, "world": _ranks, "pid": count, "dropped": count,
    "script": text, "cwd": text, "status": text, "torch": text, "python": text, "argv": _texts, "cells": _cells,
    "observed": _observed, "judged": _findings, "environment": object_of, "code": _code, "options": _options,
    "model": _named, "loaders": _named, "autocast": text, "not recorded": text,
}  # fmt: skip

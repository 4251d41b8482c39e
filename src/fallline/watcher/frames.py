"""Which line of the user's own code is behind an event.

Frames of torch, of installed packages, of the standard library and of fallline are skipped. What is asked
thousands of times in a run is looked up: a file is the user's or not once for all, a place in a code object has one
`Location`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from fallline.location import Location

__all__ = [
    "Place",
    "cells",
    "claim",
    "from_torch",
    "is_user_file",
    "locate",
    "name_cells",
    "place",
    "shown_path",
    "user_chain",
    "user_frames",
]

# Below this frame there is only the interpreter and our own command.
_BOTTOM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_ENGINE = os.path.join(_HERE, "engine", "")
_STDLIB = tuple(
    os.path.abspath(p) + os.sep
    for p in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.__file__),
    }
)
# Installed packages, and what torch.compile writes into its cache.
_PACKAGES = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    f"{os.sep}torchinductor_",
)
# Code that has no file but was not written by the user: frozen modules, generated wrappers, fx graphs, dataclasses.
_GENERATED = (
    "<frozen",
    "<eval_with_key>",
    "<__array_function__",
    "<attrs generated",
    "<decorator-gen",
)
_FRAMEWORKS = (
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "fabric",
)
_TORCH = f"-packages{os.sep}torch{os.sep}"
_CALLERS = 8
_NEW: Any = object()

_user: dict[str, bool] = {}
_claimed: list[str] = []
_framework: dict[str, str | None] = {}
# (id of a code object, instruction) → place; None where it is not the user's. Hashing code itself would be slow, so it
# is held here, and its id stays its own.
_places: dict[tuple[int, int], Location | None] = {}
_codes: dict[int, CodeType] = {}
_started_in = os.getcwd()
_cell_names: Callable[[str], tuple[str, str] | None] | None = None
cells: dict[str, str] = {}  # the source of the notebook's cells that were met


@dataclass(slots=True)
class Place:
    """Where in the user's code, who called that (the innermost first), and which framework stood in between, if any."""

    at: Location
    callers: tuple[Location, ...] = ()
    framework: str | None = None


def claim(folder: str) -> None:
    """Code in this folder is the user's, even where it is installed as a package (`-m package.train`)."""
    _claimed.append(os.path.abspath(folder) + os.sep)
    _user.clear()
    _places.clear()


def is_user_file(filename: str) -> bool:
    """Whether this file is the user's own code."""
    known = _user.get(filename)
    if known is None:
        known = _user[filename] = _decide(filename)
    return known


def _decide(filename: str) -> bool:
    if filename.startswith("<"):
        return not filename.startswith(_GENERATED)
    path = os.path.abspath(filename)
    if path.startswith(_HERE):
        return False
    if any(path.startswith(folder) for folder in _claimed):
        return True
    return not path.startswith(_STDLIB) and not any(part in path for part in _PACKAGES)


def _framework_of(filename: str) -> str | None:
    if filename not in _framework:
        _, mark, rest = filename.rpartition("-packages" + os.sep)
        top = rest.partition(os.sep)[0] if mark else ""
        found = "lightning" if top == "pytorch_lightning" else top if top in _FRAMEWORKS else None
        if found == "lightning" and f"{os.sep}fabric{os.sep}" in rest:
            found = "fabric"
        if filename.startswith(_ENGINE):
            found = "fallline"  # the Stepper divides, at the step
        _framework[filename] = found
    return _framework[filename]


def name_cells(names: Callable[[str], tuple[str, str] | None]) -> None:
    """In a notebook: what a cell is called, and its source, by the file name it is compiled under."""
    global _cell_names
    _cell_names = names
    _places.clear()


def shown_path(filename: str) -> str:
    """A path as people write it: relative to where the run was started, when it lies below."""
    if _cell_names is not None and (cell := _cell_names(filename)) is not None:
        cells[cell[0]] = cell[1]
        return cell[0]
    if filename.startswith("<"):
        return filename
    path = os.path.abspath(filename)
    below = path.startswith(_started_in + os.sep)
    return path[len(_started_in) + 1 :] if below else path


def locate(code: CodeType, instruction: int, line: int) -> Location:
    """The place of one instruction of a code object."""
    known = _places.get((id(code), instruction))
    if known is None:
        path = shown_path(code.co_filename)
        function = "" if code.co_name == "<module>" else code.co_qualname
        span = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
        first, last, begin, end = span
        if first is None or begin is None or end is None:
            known = Location(path, first or line, function=function)
        else:
            # columns are byte offsets here; they are characters only where the line is ASCII, which is good enough
            known = Location(path, first, begin + 1, last, end + 1, function)
        _places[id(code), instruction] = known
        _codes[id(code)] = code
    return known


def _meet(frame: FrameType) -> Location | None:
    """A place that was never asked for before."""
    code = frame.f_code
    if is_user_file(code.co_filename):
        return locate(code, frame.f_lasti, frame.f_lineno)
    _places[id(code), frame.f_lasti] = None
    _codes[id(code)] = code
    return None


def place(depth: int = 1) -> Place | None:
    """The innermost frame of the user's code above the caller; None when there is none."""
    frame: FrameType | None = sys._getframe(depth)
    found: list[Location] = []
    framework: str | None = None
    known = _places.get
    while frame is not None:
        code = frame.f_code
        at = known((id(code), frame.f_lasti), _NEW)
        if at is _NEW:
            at = _meet(frame)
        if at is not None:
            found.append(at)
            if len(found) > _CALLERS:
                break
        elif code.co_filename == _BOTTOM:
            break
        elif framework is None and not found:
            framework = _framework_of(code.co_filename)
        frame = frame.f_back
    if not found:
        return None
    return Place(found[0], tuple(found[1:]), framework)


def from_torch(depth: int = 1) -> bool:
    """Whether torch itself, not the user or a framework, made the call that a tap stands in front of."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame is not None and _TORCH in frame.f_code.co_filename


def user_chain(frame: FrameType | None, most: int | None = None) -> list[tuple[int, CodeType, int]]:
    """The user's frames from this one outwards, as (id, code, instruction): nothing is kept alive, and no line is counted.

    `most`: so many of them are enough.
    """
    found = []
    known = _user.get
    while frame is not None:
        code = frame.f_code
        users = known(code.co_filename)
        if users is None:
            users = is_user_file(code.co_filename)
        if users:
            found.append((id(frame), code, frame.f_lasti))
            if len(found) == most:
                break
        elif code.co_filename == _BOTTOM:
            break
        frame = frame.f_back
    return found


def user_frames(depth: int = 1) -> list[FrameType]:
    """The frames of the user's code above the caller, innermost first."""
    frame: FrameType | None = sys._getframe(depth)
    found = []
    known = _user.get
    while frame is not None:
        filename = frame.f_code.co_filename
        users = known(filename)
        if users is None:
            users = is_user_file(filename)
        if users:
            found.append(frame)
        elif filename == _BOTTOM:
            break
        frame = frame.f_back
    return found

"""Which line of the user's own code is behind a call.

Frames of torch, of installed packages, of the standard library and of fallline are skipped, so nobody has to count how
deep the stack is. What is asked thousands of times in a run is looked up: a file is the user's or not once for all, a place
in a code object has one `Location`. Needs no torch.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from sys import _getframe
from types import CodeType, FrameType
from typing import Any

from fallline.location import Location

__all__ = [
    "Place",
    "caller",
    "cells",
    "claim",
    "direct",
    "entry",
    "from_torch",
    "is_user_file",
    "locate",
    "name_cells",
    "place",
    "shown_path",
    "user_chain",
    "user_frames",
]

_TAPS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_HERE = os.path.dirname(os.path.dirname(_TAPS)) + os.sep  # of the package
# Below this frame there is only the interpreter and our own command.
_BOTTOM = os.path.join(_TAPS, "launch.py")
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


@dataclass(slots=True)
class Place:
    """Where in the user's code, who called that (the innermost first), and which framework is in between, if any."""

    at: Location
    callers: tuple[Location, ...] = ()
    framework: str | None = None


class _Between(dict[str, bool]):
    """File name → whether it is torch's or our own: what lies between a tap and whoever called torch."""

    def __missing__(self, filename: str) -> bool:
        path = os.path.abspath(filename)
        ours = path.startswith(_HERE) and not path.startswith(_ENGINE)
        self[filename] = found = ours or _of_torch(filename)
        return found


def _of_torch(filename: str) -> bool:
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    home = os.path.dirname(torch) + os.sep if torch else _TORCH
    return _TORCH in filename or filename.startswith(home)


class _Taps(dict[str, bool]):
    """File name → whether it is a file of this room."""

    def __missing__(self, filename: str) -> bool:
        self[filename] = found = os.path.abspath(filename).startswith(_TAPS)
        return found


class _Frames:
    """What is known about the code of this process."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}  # the source of the notebook's cells that were met
        self._taps = _Taps()
        self._user: dict[str, bool] = {}
        self._claimed: list[str] = []
        self._framework: dict[str, str | None] = {}
        # (id of a code object, instruction) → place; None where it is not the user's. Hashing code itself would be slow, so
        # it is held here, and its id stays its own.
        self._places: dict[tuple[int, int], Location | None] = {}
        self._codes: dict[int, CodeType] = {}
        self._started_in = os.getcwd()
        self._cell_names: Callable[[str], tuple[str, str] | None] | None = None

    # -- files -------------------------------------------------------------------------------------------------

    def claim(self, folder: str) -> None:
        """Code in this folder is the user's, even where it is installed as a package (`-m package.train`)."""
        self._claimed.append(os.path.abspath(folder) + os.sep)
        self._user.clear()
        self._places.clear()

    def is_user_file(self, filename: str) -> bool:
        """Whether this file is the user's own code."""
        known = self._user.get(filename)
        if known is None:
            known = self._user[filename] = self._decide(filename)
        return known

    def _decide(self, filename: str) -> bool:
        if filename.startswith("<"):
            return not filename.startswith(_GENERATED)
        path = os.path.abspath(filename)
        if path.startswith(_HERE):
            return False
        if any(path.startswith(folder) for folder in self._claimed):
            return True
        return not path.startswith(_STDLIB) and not any(part in path for part in _PACKAGES)

    def _framework_of(self, filename: str) -> str | None:
        if filename not in self._framework:
            self._framework[filename] = _framework(filename)
        return self._framework[filename]

    def name_cells(self, names: Callable[[str], tuple[str, str] | None]) -> None:
        """In a notebook: what a cell is called, and its source, by the file name it is compiled under."""
        self._cell_names = names
        self._places.clear()

    def shown_path(self, filename: str) -> str:
        """A path as people write it: relative to where the run was started, when it lies below."""
        if self._cell_names is not None and (cell := self._cell_names(filename)) is not None:
            self.cells[cell[0]] = cell[1]
            return cell[0]
        if filename.startswith("<"):
            return filename
        path = os.path.abspath(filename)
        below = path.startswith(self._started_in + os.sep)
        return path[len(self._started_in) + 1 :] if below else path

    # -- places ------------------------------------------------------------------------------------------------

    def locate(self, code: CodeType, instruction: int, line: int) -> Location:
        """The place of one instruction of a code object."""
        known = self._places.get((id(code), instruction))
        if known is None:
            known = _location(code, instruction, line, self.shown_path(code.co_filename))
            self._places[id(code), instruction] = known
            self._codes[id(code)] = code
        return known

    def _meet(self, frame: FrameType) -> Location | None:
        """A place that was never asked for before."""
        code = frame.f_code
        if self.is_user_file(code.co_filename):
            return self.locate(code, frame.f_lasti, frame.f_lineno)
        self._places[id(code), frame.f_lasti] = None
        self._codes[id(code)] = code
        return None

    def place(self, frame: FrameType | None = None) -> Place | None:
        """The innermost line of the user's code from this frame outwards (default: from here); None when there is none."""
        if frame is None:
            frame = sys._getframe()
        found: list[Location] = []
        framework: str | None = None
        known = self._places.get
        while frame is not None:
            code = frame.f_code
            at = known((id(code), frame.f_lasti), _NEW)
            if at is _NEW:
                at = self._meet(frame)
            if at is not None:
                found.append(at)
                if len(found) > _CALLERS:
                    break
            elif code.co_filename == _BOTTOM:
                break
            elif framework is None and not found:
                framework = self._framework_of(code.co_filename)
            frame = frame.f_back
        if not found:
            return None
        return Place(found[0], tuple(found[1:]), framework)

    # -- frames ------------------------------------------------------------------------------------------------

    def direct(self) -> FrameType:
        """The frame that calls the tap itself, whoever it belongs to."""
        taps = self._taps
        here: FrameType | None = sys._getframe()
        while here is not None and taps[here.f_code.co_filename]:
            here = here.f_back
        return here if here is not None else sys._getframe()

    def user_chain(
        self, frame: FrameType | None, most: int | None = None
    ) -> list[tuple[int, CodeType, int]]:
        """The user's frames from this one outwards, as (id, code, instruction): nothing is kept alive, and no line is counted.

        `most`: so many of them are enough.
        """
        found = []
        known = self._user.get
        while frame is not None:
            code = frame.f_code
            users = known(code.co_filename)
            if users is None:
                users = self.is_user_file(code.co_filename)
            if users:
                found.append((id(frame), code, frame.f_lasti))
                if len(found) == most:
                    break
            elif code.co_filename == _BOTTOM:
                break
            frame = frame.f_back
        return found

    def user_frames(self, frame: FrameType | None = None) -> list[FrameType]:
        """The frames of the user's code from this one outwards (default: from here), innermost first."""
        here: FrameType | None = frame if frame is not None else sys._getframe()
        found = []
        while here is not None:
            filename = here.f_code.co_filename
            if self.is_user_file(filename):
                found.append(here)
            elif filename == _BOTTOM:
                break
            here = here.f_back
        return found


def _framework(filename: str) -> str | None:
    if filename.startswith(_ENGINE):
        return "fallline"  # the Stepper divides, at the step
    _, mark, rest = filename.rpartition("-packages" + os.sep)
    top = rest.partition(os.sep)[0] if mark else ""
    if top in ("lightning", "pytorch_lightning"):
        return "fabric" if f"{os.sep}fabric{os.sep}" in rest else "lightning"
    return top if top in _FRAMEWORKS else None


def _location(code: CodeType, instruction: int, line: int, path: str) -> Location:
    function = "" if code.co_name == "<module>" else code.co_qualname
    span = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    first, last, begin, end = span
    if first is None or begin is None or end is None:
        return Location(path, first or line, function=function)
    # columns are byte offsets here; they are characters only where the line is ASCII, which is good enough
    return Location(path, first, begin + 1, last, end + 1, function)


def from_torch() -> bool:
    """Whether torch itself, not the user or a framework, made the call that a tap is in front of."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame is not None and _of_torch(frame.f_code.co_filename)


_frames = _Frames()  # of this process
_between = _Between()
cells = _frames.cells
claim = _frames.claim
direct = _frames.direct
is_user_file = _frames.is_user_file
locate = _frames.locate
name_cells = _frames.name_cells
place = _frames.place
shown_path = _frames.shown_path
user_chain = _frames.user_chain
user_frames = _frames.user_frames


def caller() -> FrameType:
    """The frame that calls torch: the innermost that is neither torch's nor ours (the engine counts as a framework).

    Every update asks this several times: it begins behind this function and the tap, whose frame need not be made.
    """
    try:
        here: Any = _getframe(2)
        while _between[here.f_code.co_filename]:
            here = here.f_back
    except (AttributeError, ValueError):  # called from no Python at all
        return _getframe()
    found: FrameType = here
    return found


def entry(frame: FrameType | None) -> FrameType | None:
    """From this frame outwards, the call that the user's line made into a framework; None where it called torch itself."""
    found = None
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if not _between[frame.f_code.co_filename]:
            found = frame
        frame = frame.f_back
    return found

"""What the user asked for: the command line over `[tool.fallline]` in the nearest pyproject.toml that has it.

[tool.fallline]
select = ["FL1", "FL201"]              # codes, prefixes, names or ALL; everything when left out
ignore = ["FL112", "loader-in-process"]
exclude = ["third_party", "**/generated.py"]
per-file-ignores = { "tests/*" = ["FL5"] }
baseline = "fallline-baseline.json"
cache-dir = ".fallline_cache"
thresholds = { FL120 = { factor = 50 } }   # of the numeric rules of `fallline run`
"""

from __future__ import annotations

import os

from fallline.check.patterns import matches
from fallline.errors import UsageError
from fallline.rules import rule_names
from fallline.untrusted import read_file

TYPE_CHECKING = False  # importing `typing` would cost the start-up more than this module does
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_LARGEST = 10_000_000  # bytes of a pyproject.toml

__all__ = ["Selection", "Settings", "load", "nearest"]


class Selection:
    """Which codes are wanted. The longer (more exact) of two prefixes wins; of equals, `ignore` does."""

    def __init__(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        self.select = tuple(select) or ("ALL",)
        self.ignore = tuple(ignore)

    def wants(self, code: str, name: str = "") -> bool:
        if code == "FL000":
            # a file that could not be read was not checked: only naming FL000 itself silences that
            return not {"FL000", name} & set(self.ignore)
        return _closest(code, name, self.select) > _closest(code, name, self.ignore)


def _closest(code: str, name: str, choices: Sequence[str]) -> int:
    """How exactly the best of the choices means this rule: -1 not at all, 0 for ALL, else the prefix length."""
    best = -1
    for choice in choices:
        if choice == "ALL":
            best = max(best, 0)
        elif choice in (code, name):
            best = max(best, len(code))
        elif choice.startswith("FL") and code.startswith(choice):
            best = max(best, len(choice))
    return best


class Settings:
    """The effective settings of one check."""

    def __init__(self) -> None:
        self.root = os.getcwd()
        self.file: str | None = None  # the pyproject.toml they came from
        self.selection = Selection()
        self.exclude: tuple[str, ...] = ()
        self.per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
        self.baseline: str | None = None
        self.cache_dir: str | None = None
        self.thresholds: dict[str, dict[str, float]] = {}

    def ignored_in(self, path: str, code: str, name: str) -> bool:
        """Whether `per-file-ignores` silences this code in this file."""
        if not self.per_file_ignores:
            return False
        return any(
            _closest(code, name, codes) >= 0 and matches(path, pattern, self.root)
            for pattern, codes in self.per_file_ignores
        )


def load(
    paths: Sequence[str],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    below: str | None = None,
) -> Settings:
    """The settings for checking these paths, with the command line's choices on top.

    `select` replaces the file's; `ignore` adds to it, but never undoes what `select` names outright.
    `below`: nothing outside of this folder is opened.
    """
    settings = Settings()
    file = nearest(paths, below)
    table: dict[str, Any] = {}
    if file is not None:
        settings.file, settings.root = file, os.path.dirname(file)
        table = _table(file)
    selected = _codes(select, "--select")
    from_file = _codes(_strings(table, "ignore", file), f"{file}: ignore")
    ignored = (*_codes(ignore, "--ignore"), *(code for code in from_file if code not in selected))
    settings.selection = Selection(
        selected or _codes(_strings(table, "select", file), f"{file}: select"), ignored
    )
    settings.exclude = _strings(table, "exclude", file)
    settings.per_file_ignores = _per_file(table, file)
    settings.baseline = _path(table, "baseline", settings)
    settings.cache_dir = _path(table, "cache-dir", settings)
    settings.thresholds = _thresholds(table, file)
    return settings


KEYS = ("select", "ignore", "exclude", "per-file-ignores", "baseline", "cache-dir", "thresholds")


def nearest(paths: Sequence[str], below: str | None = None) -> str | None:
    """The nearest pyproject.toml with a [tool.fallline] table, from the folder that holds all paths upwards to `below`."""
    known = [os.path.abspath(p) for p in paths if p != "-"] or [os.getcwd()]
    try:
        folder = os.path.commonpath(known)
    except ValueError:  # different drives
        folder = os.path.dirname(known[0])
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        candidate = os.path.join(folder, "pyproject.toml")
        if below is not None and not _inside(candidate, below):
            return None
        if os.path.isfile(candidate):
            try:
                if b"tool.fallline" in read_file(candidate, _LARGEST):
                    return candidate
            except OSError as error:
                raise UsageError(f"{candidate} cannot be read: {error.strerror or error}") from None
        up = os.path.dirname(folder)
        if up == folder:
            return None
        folder = up


def _inside(path: str, folder: str) -> bool:
    """Whether the path lies in the folder once all links are followed."""
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def _table(file: str) -> dict[str, Any]:
    import tomllib

    try:
        whole = tomllib.loads(read_file(file, _LARGEST).decode())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # also an integer of more digits than Python reads
        raise UsageError(f"{file} is not valid TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{file} is not valid TOML: it is nested too deeply") from None
    tool = whole.get("tool", {})
    table = tool.get("fallline", {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.fallline] must be a table")
    for key in table:
        if key not in KEYS:
            raise UsageError(
                f"{file}: [tool.fallline] has no key '{key}'. It knows: {', '.join(KEYS)}."
            )
    return table


def _strings(table: dict[str, Any], key: str, file: str | None) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(
            f'{file}: [tool.fallline] {key} must be a list of strings, such as ["FL1"]'
        )
    return tuple(value)


def _per_file(table: dict[str, Any], file: str | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    value = table.get("per-file-ignores", {})
    if not isinstance(value, dict):
        raise UsageError(
            f'{file}: [tool.fallline] per-file-ignores must be a table, such as {{ "tests/*" = ["FL5"] }}'
        )
    where = f"{file}: per-file-ignores"
    return tuple((pattern, _codes(_strings(value, pattern, file), where)) for pattern in value)


def _thresholds(table: dict[str, Any], file: str | None) -> dict[str, dict[str, float]]:
    value: dict[str, dict[str, float]] = table.get("thresholds", {})
    tables = isinstance(value, dict) and all(isinstance(v, dict) for v in value.values())
    if not tables or not all(_is_number(n) for v in value.values() for n in v.values()):
        raise UsageError(
            f"{file}: [tool.fallline] thresholds must hold numbers, such as {{ FL120 = {{ factor = 50 }} }}"
        )
    return value


def _is_number(value: object) -> bool:
    """A number that a float can hold: not 10 ** 400, not inf, not true."""
    if type(value) not in (int, float):
        return False
    try:
        return float(value) - float(value) == 0  # type: ignore[arg-type]
    except OverflowError:
        return False


def _path(table: dict[str, Any], key: str, settings: Settings) -> str | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) < 4096 or "\0" in value:
        raise UsageError(f"{settings.file}: [tool.fallline] {key} must be a path")
    return os.path.join(settings.root, value)


def _codes(choices: Sequence[str], where: str) -> tuple[str, ...]:
    """The choices split at commas and brought to one form; one that means no rule is an error, not silence."""
    found = tuple(
        piece.strip() for choice in choices for piece in choice.split(",") if piece.strip()
    )
    if not found:
        return ()
    names = rule_names()
    settled = []
    for choice in found:
        upper, lower = choice.upper(), choice.lower()
        if upper == "ALL" or (
            upper.startswith("FL") and any(code.startswith(upper) for code in names)
        ):
            settled.append(upper)
        elif lower in names.values():
            settled.append(lower)
        else:
            raise UsageError(
                f"{where}: no rule has the code or name '{choice}'. `fallline rule --all` lists them."
            )
    return tuple(settled)

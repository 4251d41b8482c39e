"""What a run was asked for: its command line, parsed arguments and configuration files. Secrets are left out."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fallline.untrusted import read_file
from fallline.watcher.provenance.secrets import HIDDEN, is_secret, masked, masked_lines

__all__ = ["arguments", "configuration_files", "flattened"]

_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_LARGEST = 200_000  # bytes of a configuration file
_MOST = 2_000  # options
_LONGEST = 300  # characters of a value


def arguments(words: list[str]) -> dict[str, Any]:
    """`--lr 0.1 --amp data=cifar` as names and values, as argparse and Hydra would take them."""
    found: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("-") and not _is_number(word):
            name, _, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            found[name] = value if "=" in word else True
        elif name is not None and found.get(name) is True:
            found[name] = word
        elif "=" in word:
            key, _, value = word.partition("=")
            found[key.lstrip("+~")] = value
        elif name is not None:
            found[name] = f"{found[name]} {word}"  # --layers 2 3 4
        else:
            found[f"argument {len(found)}"] = word
    return {k: _plain(k, v) for k, v in found.items()}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def flattened(thing: Any) -> dict[str, Any]:
    """The plain values in parsed arguments, by dotted name."""
    return dict(_values("", thing, 6))


def _values(prefix: str, thing: Any, deeper: int) -> Iterator[tuple[str, Any]]:
    known = vars(thing) if isinstance(thing, Namespace) else thing
    if not isinstance(known, Mapping):
        return
    for name, value in list(known.items())[:_MOST]:
        full = f"{prefix}{name}"
        if isinstance(value, Mapping | Namespace) and deeper:
            yield from _values(f"{full}.", value, deeper - 1)
        elif isinstance(value, str | int | float | bool | os.PathLike) or value is None:
            yield full, _plain(full, value)
        elif isinstance(value, list | tuple) and len(value) <= 64:
            yield full, _plain(full, str(list(value)))


def _plain(name: str, value: Any) -> Any:
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**62 else str(value)
    return masked(os.fspath(value) if isinstance(value, os.PathLike) else str(value))[:_LONGEST]


def configuration_files(words: list[str]) -> dict[str, list[str]]:
    """Those that the command line names, and what Hydra made of its own: name → lines."""
    found: dict[str, list[str]] = {}
    for word in words:
        path = Path(word.partition("=")[2] if word.startswith("-") and "=" in word else word)
        if path.suffix in _SUFFIXES and len(found) < 20:
            _take(found, path.name, path)
    folder = _hydra_folder()
    if folder is not None:
        _take(found, "config.yaml (Hydra)", folder / ".hydra" / "config.yaml")
    return found


def _take(found: dict[str, list[str]], name: str, path: Path) -> None:
    try:
        text = read_file(path, _LARGEST).decode("utf-8", errors="replace")
    except OSError:
        return
    found[name] = masked_lines(text.splitlines(), plain=True)


def _hydra_folder() -> Path | None:
    hydra: Any = sys.modules.get("hydra.core.hydra_config")
    try:
        return Path(hydra.HydraConfig.get().runtime.output_dir)
    except Exception:  # there is no Hydra, or it has not begun
        return None

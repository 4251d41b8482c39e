"""The code that ran: the script and what it imported from its own project, line by line, and the state of its repository."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from fallline.untrusted import read_file
from fallline.watcher.provenance.git import Repository, repository
from fallline.watcher.provenance.secrets import masked_lines

__all__ = ["code_of"]

_MOST_FILES = 300
_LARGEST = 400_000  # bytes of a file that is kept line by line
_LARGEST_SUM = 3_000_000
_FOREIGN = ("site-packages", "dist-packages")


def code_of(script: str | None) -> dict[str, Any]:
    """`main`: the script's path. `files`: path from the project's root → hash, and lines unless there are too many."""
    main = _main(script)
    if main is None:
        return {}
    kept = repository(main.parent)
    root = kept.root if kept is not None else main.parent
    files: dict[str, Any] = {}
    changed: list[str] = []
    room = _LARGEST_SUM
    for path in [main, *_imported(root, main)][:_MOST_FILES]:
        try:
            content = read_file(path, 10 * _LARGEST)
        except OSError:
            continue
        name = path.relative_to(root).as_posix()
        files[name] = {"hash": hashlib.sha256(content).hexdigest()[:16]}
        if len(content) <= min(_LARGEST, room):
            room -= len(content)
            lines = content.decode("utf-8", errors="replace").splitlines()
            files[name]["lines"] = masked_lines(lines)
        if kept is not None and kept.changed(name, content):
            changed.append(name)
    return {"main": main.relative_to(root).as_posix(), "files": files, **_state(kept, changed)}


def _state(kept: Repository | None, changed: list[str]) -> dict[str, Any]:
    if kept is None:
        return {}
    return {"commit": kept.commit, "branch": kept.branch, "changed": changed}


def _main(script: str | None) -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None) or script
    if not file or not os.path.isfile(file):
        return None
    return Path(os.path.realpath(file))


def _imported(root: Path, main: Path) -> list[Path]:
    """Files of modules that lie below the root, in a stable order, without installed packages."""
    inside = str(root) + os.sep
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
    found = set()
    folders: dict[str, bool] = {}  # thousands of modules lie in few: whether each is below the root
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")  # a lazy module must stay asleep
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        folder = os.path.dirname(file)
        if folder not in folders:
            folders[folder] = (_real(folder) + os.sep).startswith(inside)
        if not folders[folder]:
            continue
        real = os.path.realpath(file)
        if real.startswith(inside) and not real.startswith(ours):
            if not any(part in _FOREIGN or part.startswith(".") for part in real[len(inside) :].split(os.sep)):  # fmt: skip
                found.add(Path(real))
    return sorted(found - {main})


@functools.lru_cache(4_096)
def _real(folder: str) -> str:
    """As `os.path.realpath`, with one look at each folder on the way: packages have hundreds of folders in one place."""
    above, name = os.path.split(folder)
    if (
        not name
        or name in (os.curdir, os.pardir)
        or not os.path.isabs(folder)
        or os.path.islink(folder)
    ):
        return os.path.realpath(folder)
    return os.path.join(_real(above), name)

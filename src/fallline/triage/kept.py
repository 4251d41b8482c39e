"""What is derived from the claims and playbooks (indices of their words, parsed tables), kept in the user's cache folder: making it takes longer than an answer.

It is plain data (numbers, texts, tuples, dictionaries), of this version of fallline and of Python and of these very files; a file that is damaged, or that
cannot be read or written, costs time, never an answer.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fallline.files import write_atomically

__all__ = ["kept", "state_of", "tables"]

_HERE = Path(__file__).parent
_DIGEST = hashlib.sha256().digest_size
T = TypeVar("T")


@cache
def state_of() -> str:
    """What everything that is derived rests on: the texts and the code of this room, by size and time, and this Python."""
    seen = hashlib.sha256(sys.version.encode())
    for folder in (_HERE, _HERE / "claims", _HERE / "points", _HERE / "playbooks"):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith((".md", ".toml", ".py")):
                    stat = entry.stat()
                    seen.update(f"{entry.path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "fallline"


def kept(name: str, build: Callable[[], T], of: str = "") -> T:
    """What `build` makes, from the cache where it was made before. What is made of other things than this room's texts rests on the state `of` those."""
    state = hashlib.sha256(f"{of} {sys.version}".encode()).hexdigest()[:16] if of else state_of()
    file = _folder() / f"ask-{name}-{state}.bin"
    try:
        whole = file.read_bytes()
    except OSError:
        whole = b""
    digest, data = whole[:_DIGEST], whole[_DIGEST:]
    if data and hashlib.sha256(data).digest() == digest:  # marshal trusts what it is given
        return marshal.loads(data)  # type: ignore[no-any-return]
    made = build()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"ask-{name}-*.bin"):
            old.unlink(missing_ok=True)
        data = marshal.dumps(made)  # type: ignore[arg-type]
        write_atomically(str(file), hashlib.sha256(data).digest() + data)
    except OSError:
        pass
    return made


def tables(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The tables of TOML files."""
    import tomllib  # what is kept was read before

    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]

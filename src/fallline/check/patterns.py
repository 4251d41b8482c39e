"""Path patterns as people write them in `exclude` and `per-file-ignores`."""

from __future__ import annotations

import os

__all__ = ["matches"]


def matches(path: str, pattern: str, root: str) -> bool:
    """Whether a file or folder, or a folder it is in, is meant by a pattern relative to `root`.

    `tests`, `tests/*`, `**/generated.py` and `*_pb2.py` all mean what they look like.
    """
    from fnmatch import fnmatchcase

    relative = os.path.relpath(os.path.abspath(path), root).replace(os.sep, "/")
    pattern = pattern.replace(os.sep, "/").removeprefix("./").rstrip("/")
    parts = relative.split("/")
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts)
    candidates = [pattern, pattern.removeprefix("**/")]
    wholes = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatchcase(whole, candidate) for whole in wholes for candidate in candidates)

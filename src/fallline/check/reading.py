"""Files → readings: those that cannot matter are passed over, those that have not changed come from the cache."""

from __future__ import annotations

import os
import stat

from fallline.matters import nothing_to_find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fallline.check.discovery import Problem
    from fallline.verdict.reading import Reading

__all__ = ["read_files"]

# Up to this size a file is looked at right here; it is not worth starting the reader for.
_SMALL = 4096


def read_files(
    paths: Sequence[str],
    *,
    root: str,
    cache_dir: str | None,
    jobs: int,
    problems: list[Problem],
    on_file: Callable[[], None],
) -> list[Reading]:
    """The readings of these files as one project. What cannot be opened goes to `problems`."""
    pending = []
    for path in paths:
        try:
            if _worth_reading(path):
                pending.append(path)
            else:
                on_file()
        except OSError as error:
            problems.append((path, f"cannot be read: {error.strerror or error}"))
            on_file()
    if not pending:
        return []
    return _read(pending, root, cache_dir, jobs, on_file)


def _worth_reading(path: str) -> bool:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is not a regular file")  # opening a pipe would wait for ever
    with open(path, "rb") as handle:
        head = handle.read(_SMALL + 1)
    return len(head) > _SMALL or not nothing_to_find(path, head)


def _read(
    paths: list[str],
    root: str,
    cache_dir: str | None,
    jobs: int,
    on_file: Callable[[], None],
) -> list[Reading]:
    # imported here: a check that finds nothing to do shall start quickly
    from fallline.verdict.project import read_paths

    if cache_dir is None:
        return read_paths(paths, roots=[root], jobs=jobs, on_file=lambda _: on_file())
    # imported here: a check that finds nothing to do shall start quickly
    from fallline.check.cache import Cache

    cache = Cache(cache_dir, root, paths)
    readings = read_paths(
        paths,
        roots=[root],
        jobs=jobs,
        on_file=lambda _: on_file(),
        known=cache.readings(),
        unchanged=cache.unchanged,
    )
    if not cache.unchanged:
        cache.save(readings)
    return readings

"""Processes that read for us import nothing from the folder they are started in, which may be the one that is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["apart"]


@contextmanager
def apart() -> Iterator[None]:
    """Python processes that are started meanwhile do not have the current folder on their path."""
    was = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if was is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = was

"""What is known of an optimizer while nothing about it changes."""

from __future__ import annotations

from dataclasses import dataclass

from fallline.watcher.numbers import Numbers

__all__ = ["Known"]


@dataclass(slots=True)
class Known:
    """An optimizer that has stepped."""

    name: str
    held: int  # its set of parameters
    numbers: Numbers
    on_device: bool

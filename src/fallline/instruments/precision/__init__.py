"""Which operation fails in half precision, what to change, and whether it is worth it: measured, not guessed.

The names are imported on first use: a script that is measured imports torch itself, and may have something to set first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fallline.instruments.precision.probe import precision_probe
    from fallline.instruments.precision.report import PrecisionReport

_HOME = {"PrecisionReport": "report", "precision_probe": "probe"}

__all__ = ["PrecisionReport", "precision_probe"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

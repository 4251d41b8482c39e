"""What a model is made of and how signal and gradient go through it, measured with one batch.

The names are imported on first use: a script that is measured imports torch itself, and may have something to set first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fallline.instruments.model.measure import measure_model
    from fallline.instruments.model.report import ModelReport

_HOME = {"ModelReport": "report", "measure_model": "measure"}

__all__ = ["ModelReport", "measure_model"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

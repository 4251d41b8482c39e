"""Healthy runs that look odd. Not one of them may yield an error or a warning."""

from __future__ import annotations

from watcher.matrix import (  # noqa: F401  each puts its runs into HEALTHY
    healthy_data,
    healthy_models,
    healthy_precision,
    healthy_rates,
)
from watcher.matrix.healthy_run import HEALTHY

__all__ = ["HEALTHY"]

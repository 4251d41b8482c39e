"""Injected faults: one mistake each, in an otherwise healthy loop, for every architecture."""

from __future__ import annotations

from watcher.matrix import (  # noqa: F401  each puts its faults into FAULTS
    faults_gradients,
    faults_memory,
    faults_numerics,
    faults_precision,
)
from watcher.matrix.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]

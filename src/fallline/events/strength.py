"""How surely something is known about a program that was only read."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Strength"]


class Strength(StrEnum):
    """A finding is as strong as the weakest thing it rests on, and says what was only presumed."""

    SEEN = "seen"  # made in view
    INFERRED = "inferred"  # from its use: only a scaler has `unscale_`
    PRESUMED = "presumed"  # from a name or a convention: `criterion` averages

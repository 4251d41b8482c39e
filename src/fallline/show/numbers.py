"""Numbers for people, and for JSON."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["bytes_text", "json_numbers", "number", "seconds_text", "value"]


def number(value: float | None) -> str:
    """Short, for people: 0.00123, 1.2e-07, 12,345."""
    if value is None or value != value:
        return "–" if value is None else "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def value(given: object) -> str:
    """A quantity for people: counts in full, measurements short."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    if not isinstance(given, int | float):
        return str(given)
    whole = math.isfinite(given) and given == int(given) and abs(given) < 1e9
    return f"{int(given):,}" if whole else number(float(given))


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def bytes_text(count: float | None) -> str:
    if count is None:
        return "–"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def json_numbers(thing: Any) -> Any:
    """JSON has no infinities: they become words."""
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    if isinstance(thing, dict):
        return {k: json_numbers(v) for k, v in thing.items()}
    if isinstance(thing, list):
        return [json_numbers(v) for v in thing]
    return thing

"""What the numbers in a question say: the loss falls or rises, the norm rises. Words are often missing where numbers are pasted."""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["trends"]

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_NEXT = r"\s*(?:,|;|/|-+>|=>|→|\bto\b|\bthen\b|\band\b|\.\.+)+\s*"
_WORTH = 1.1  # a series moves when its ends differ by a tenth
_WORDS = {"loss": r"\w*loss(?:es)?", "norm": r"\w*norms?"}  # also train_loss, grad_norm, gnorm


def trends(text: str) -> frozenset[str]:
    """Any of `loss falls`, `loss rises`, `norm falls`, `norm rises`."""
    found = set()
    for name, word in _WORDS.items():
        for series in _series(text, word):
            pairs = list(pairwise(series))
            low, high = min(series), max(series)
            if low <= 0 or high < _WORTH * low:
                continue
            if all(a > b for a, b in pairs):
                found.add(f"{name} falls")
            elif all(a < b for a, b in pairs):
                found.add(f"{name} rises")
    return frozenset(found)


def _series(text: str, word: str) -> list[list[float]]:
    """The lists of numbers after a word, and the numbers that follow it one by one, as in a log of at least three lines."""
    # a word may be named once for a list, or before each number; what stands between is short and holds no number
    pattern = rf"(?i)\b{word}\b[^\d\n]{{0,24}}?({_NUMBER}(?:{_NEXT}{_NUMBER})*)"
    lists = [
        [float(n) for n in re.findall(f"(?i){_NUMBER}", match[1])]
        for match in re.finditer(pattern, text)
    ]
    log = [numbers[0] for numbers in lists]
    return [*(numbers for numbers in lists if len(numbers) > 1), *([log] if len(log) > 2 else [])]

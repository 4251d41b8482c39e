"""Texts with holes: `{name}` stands for what was read from a message or from the code."""

from __future__ import annotations

import re

__all__ = ["SENTENCE", "filled", "shortened"]

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_READ = re.compile(r"\{(\w+)\}")


def filled(text: str, read: dict[str, str]) -> str:
    """The text with what was read; a clause about something that was not pasted goes."""
    if any(name not in read for name in _READ.findall(text)):
        text = _without_unread(text, read)
    return _READ.sub(lambda m: read.get(m[1], "the value"), text)


def _without_unread(text: str, read: dict[str, str]) -> str:
    sentences = [s.split("; ") for s in SENTENCE.split(text)]
    kept = [
        "; ".join(c for c in clauses if all(name in read for name in _READ.findall(c)))
        for clauses in sentences
    ]
    joined = " ".join(s if s.endswith((".", "!", "?", ":")) else f"{s}." for s in kept if s)
    return joined or text


def shortened(says: str, sentences: int = 4) -> str:
    return " ".join(SENTENCE.split(says)[:sentences])

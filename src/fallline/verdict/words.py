"""Which byte strings a file holds, for a hundred rules at the price of one look at it."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["Words"]

_WORD = re.compile(rb"\w+")
# what is not part of a name becomes a blank; letters beyond ASCII are parts of names
_BLANKED = bytes(c if c > 127 or _WORD.match(bytes([c])) else 32 for c in range(256))


class Words:
    """The bytes of a file. Every word of it is looked at once, however often it is written."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._words = set(data.translate(_BLANKED).split())
        self._together = b" ".join(self._words)
        self._known: dict[bytes, bool] = {}

    def holds(self, token: bytes) -> bool:
        known = self._known.get(token)
        if known is None:
            word = _longest(token)
            known = (word in self._words or word in self._together) and (
                word == token or token in self._data
            )
            self._known[token] = known
        return known

    def holds_any(self, tokens: tuple[bytes, ...]) -> bool:
        """Whether one of these is in it; of none at all, yes."""
        return not tokens or any(map(self.holds, tokens))


@cache
def _longest(token: bytes) -> bytes:
    """The longest word of a token: `forward` of `.forward(`."""
    return max(_WORD.findall(token), key=len, default=b"")

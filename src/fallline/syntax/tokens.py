"""Which byte strings a file holds, for a hundred rules at the price of one look at the words that no file before it had."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Tokens", "words_in"]

_WORD = re.compile(rb"\w+")
# what is not part of a name becomes a blank; letters beyond ASCII are parts of names
_BLANKED = bytes(c if c > 127 or _WORD.match(bytes([c])) else 32 for c in range(256))
_BETWEEN = frozenset(bytes([c]) for c in range(256) if _BLANKED[c] == 32)
_MOST = 200_000  # words that are remembered


def words_in(data: bytes) -> frozenset[bytes]:
    """Every word of a file once, however often it is written."""
    return frozenset(data.translate(_BLANKED).split())


class _Token(NamedTuple):
    """What a token asks of the words of a file: `part` is its longest word, which begins or ends a word of the file where it is cut off."""

    text: bytes
    part: bytes
    begins: bool
    ends: bool
    whole: frozenset[bytes]  # its words that are cut off on both sides: `cpu` of `torch.cpu import`


class Tokens:
    """Byte strings that are looked for in file after file.

    Files of one project are written in the same words: which of them a token is part of is found out once for each word.
    """

    def __init__(self, tokens: frozenset[bytes]) -> None:
        self._by_part: dict[bytes, list[_Token]] = {}
        for token in map(_read, tokens):
            self._by_part.setdefault(token.part, []).append(token)
        self._wordless = {token.text for token in self._by_part.pop(b"", [])}
        # the parts that hold a shorter one, by that: `focal_loss` is only in words in which `loss` is
        self._longer: dict[bytes, list[bytes]] = {}
        for part in sorted(self._by_part, key=len):
            shorter = next((known for known in self._longer if known in part), part)
            self._longer.setdefault(shorter, []).append(part)
        self._words = frozenset(part for part in self._by_part if part in tokens)
        self._whole = {t.text: t.whole for same in self._by_part.values() for t in same if t.whole}
        self._seen: set[bytes] = set()
        # which tokens a word may be a part of, of those that may be part of any
        self._holding: dict[bytes, set[bytes]] = {}
        self._holders: set[bytes] = set()

    def held(self, data: bytes, words: frozenset[bytes]) -> set[bytes]:
        """Those that a file holds; `words` are all of its words."""
        if len(self._seen) > _MOST:
            self._seen, self._holding = set(), {}
        new = words - self._seen
        if new:
            self._learn(new)
        likely = self._wordless.union(*map(self._holding.__getitem__, words & self._holders))
        return (likely & self._words) | {
            token
            for token in likely - self._words
            if self._whole.get(token, words) <= words and token in data
        }

    def _learn(self, words: frozenset[bytes]) -> None:
        together = b" %s " % b" ".join(words)
        for shortest, parts in self._longer.items():
            at = together.find(shortest)
            while at >= 0:
                end = together.index(b" ", at)
                word = together[together.rindex(b" ", 0, at) + 1 : end]
                for part in parts:
                    if part in word:
                        self._note(word, part)
                at = together.find(shortest, end)
        self._holders = set(self._holding)
        self._seen |= words

    def _note(self, word: bytes, part: bytes) -> None:
        for token in self._by_part[part]:
            if token.begins <= word.startswith(part) and token.ends <= word.endswith(part):
                self._holding.setdefault(word, set()).add(token.text)


def _read(token: bytes) -> _Token:
    cut = [
        (m[0], token[: m.start()][-1:] in _BETWEEN, token[m.end() :][:1] in _BETWEEN)
        for m in _WORD.finditer(token)
    ]
    longest = max(cut, key=lambda word: len(word[0]), default=(b"", False, False))
    return _Token(token, *longest, frozenset(word for word, begins, ends in cut if begins and ends))

"""Mirror images: a question about a validation loss that rises while the training loss falls, and a claim about the reverse, share all their words.

A text says what the numbers of training and of held-out data do, and which of them is better. A claim whose wordings only say the opposite of what a question says does not answer it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from fallline.triage.claim import claims
from fallline.triage.kept import kept

__all__ = ["agreed", "told"]

_CLAUSE = re.compile(r"[,;.!?\n]+\s|\b(?:but|while|whereas|although|though|however|and|yet)\b")
_BOTH_WAYS = re.compile(
    r"\b(?:ups? and downs?|increas\w+ and decreas\w+|decreas\w+ and increas\w+)\b"
)
_WORD = re.compile(r"[a-z]+")
_DATA = {
    **dict.fromkeys(("train", "training", "trained"), "training"),
    **dict.fromkeys(("val", "valid", "validation", "test", "testing", "dev", "eval"), "held-out"),
}
_NUMBER = {
    **dict.fromkeys(("loss", "losses", "error", "perplexity"), "loss"),
    **dict.fromkeys(("acc", "accuracy", "accuracies", "score", "performance", "miou"), "accuracy"),
}
_UP = re.compile(r"(?:increas|ris(?:e|ing)|rose|grow|climb)\w*|up|upward")
_DOWN = re.compile(r"(?:decreas|fall|drop|declin|reduc)\w*|fell|down|downward")
_MORE = frozenset({"higher", "larger", "bigger", "greater", "above", "more"})
_LESS = frozenset({"lower", "smaller", "less", "below"})
_BETTER, _WORSE = frozenset({"better"}), frozenset({"worse"})
_NEGATED = frozenset(
    {"not", "no", "never", "doesn", "don", "isn", "won", "without", "stop", "stops"}
)
_NEAR = 9  # words between the two sides of a comparison


def told(text: str) -> frozenset[str]:
    """What a text says of the two kinds of data: `held-out loss up`, `held-out better`."""
    low = _BOTH_WAYS.sub("swings", text.lower())
    clauses = [_WORD.findall(c) for c in _CLAUSE.split(low)]
    found = {said for clause in clauses if (said := _compared(clause)) is not None}
    number = ""
    for clause in clauses:
        number = next((_NUMBER[w] for w in clause if w in _NUMBER), number)
        data = {_DATA[w] for w in clause if w in _DATA}
        moves = {way for w in clause if (way := _way(w)) is not None}
        if len(data) == len(moves) == 1 and number and _NEGATED.isdisjoint(clause):
            found.add(f"{data.pop()} {number} {moves.pop()}")
    return frozenset(found)


def _way(word: str) -> str | None:
    return "up" if _UP.fullmatch(word) else "down" if _DOWN.fullmatch(word) else None


def _compared(words: list[str]) -> str | None:
    """Which data is better, where one side of a comparison is on either side of its word."""
    for at, word in enumerate(words):
        if word not in _MORE | _LESS | _BETTER | _WORSE:
            continue
        left = [_DATA[w] for w in words[max(0, at - _NEAR) : at] if w in _DATA]
        right = [_DATA[w] for w in words[at + 1 : at + _NEAR] if w in _DATA]
        if not left or not right or left[-1] == right[0] or not _NEGATED.isdisjoint(words):
            continue
        number = next((_NUMBER[w] for w in words if w in _NUMBER), "accuracy")
        good = word in _BETTER or (word in _MORE if number == "accuracy" else word in _LESS)
        return f"{left[-1] if good else right[0]} better"
    return None


_OPPOSITE = {"up": "down", "down": "up"}


def _opposite(said: str) -> str:
    data, _, way = said.rpartition(" ")
    if way == "better":
        return "training better" if data == "held-out" else "held-out better"
    return f"{data} {_OPPOSITE[way]}"


@cache
def _of_claims() -> dict[int, tuple[str, ...]]:
    return kept("mirror", _indexed)


def _indexed() -> dict[int, tuple[str, ...]]:
    """What the wordings of each claim say, of those that say anything."""
    said = {n: _together(claim.asks) for n, claim in enumerate(claims())}
    return {n: tuple(sorted(one)) for n, one in said.items() if one}


def _together(texts: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*map(told, texts))


def agreed(number: int, said: frozenset[str]) -> int | None:
    """How much of what a question says a claim (by its number) says too; None where it only says the opposite."""
    own = _of_claims().get(number, ())
    if any(_opposite(one) in own and one not in own for one in said):
        return None
    return sum(one in own for one in said)

"""Python 2, spelled as Python 3 with every token in its line, and nearly all in their columns: research code of 2017 and 2018 is full of it.

`print x` becomes `print(x)`, with the bracket where the blank was; so do `exec`, `raise E, "why"`, `except E, e:`, `0777`, `10L`, `<>`,
`x.cuda(async=True)`. What cannot be spelled (tuples as parameters, backquotes) leaves the file unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["as_python3"]

_TOKEN = re.compile(
    r"(?P<string>(?i:[bu]?r?)(?P<quote>'''|\"\"\"|'|\")(?:\\.|(?!(?P=quote)).)*?(?P=quote))"
    r"|(?P<comment>\#[^\n]*)|(?P<joined>\\\n)|(?P<end>[\n;])|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<colon>:)|(?P<comma>,)"
    r"|(?P<number>(?<![\w.])(?:0[0-7]+|0[xX][\da-fA-F]+|\d+)[lL]?(?![\w.]))|(?P<word>[^\W\d]\w*)|(?P<unequal><>)|(?P<into>>>)|(?P<blank>[ \t]+)|(?P<other>.)",
    re.S,
)
_OPENS = frozenset({"print", "exec"})
_STAYS = re.compile(r"[ \t]*(?:[(=.,)\]:]|$|#|;|[-+*/%&|^]?=)")


def as_python3(text: str) -> str | None:
    """The text in newer grammar; None where nothing in it is older."""
    found = "".join(_spelled(text))
    return found if found != text else None


def _spelled(text: str) -> Iterator[str]:
    depth = 0
    first = True  # at the beginning of a statement
    statement = ""
    closing = False  # the statement needs a bracket at its end
    trailing = ""  # blanks and comments that come after that bracket
    for token in _TOKEN.finditer(text):
        kind, written = token.lastgroup, token[0]
        if kind == "quote":
            kind = "string"
        if kind in {"blank", "comment"} and depth == 0:
            trailing += written
            continue
        if kind == "end" and depth == 0:
            yield (")" if closing else "") + trailing + written
            first, statement, closing, trailing = True, "", False, ""
            continue
        if statement == "open":  # the blank after `print` becomes its bracket
            statement = ""
            closing = True
            yield "(" + trailing[1:]
            trailing = ""
            if kind == "into":
                written = " " * len(written)
        yield trailing
        trailing = ""
        if first and kind == "word" and written in _OPENS:
            rest = text[token.end() : text.find("\n", token.end()) % (len(text) + 1)]
            if not _STAYS.match(rest):
                statement = "open"
            yield written
        elif first and kind == "word" and written in {"raise", "except"}:
            statement = written
            yield written
        elif kind == "comma" and depth == 0 and statement == "raise":
            statement, closing = "", True
            yield "("
        elif kind == "comma" and depth == 0 and statement == "except":
            statement = ""
            yield " as"
        elif kind == "number":
            yield _number(written)
        elif kind == "unequal":
            yield "!="
        elif (
            kind == "word" and written == "async" and re.match(r"[ \t]*=(?!=)", text[token.end() :])
        ):
            yield "asynk"
        elif kind == "string" and re.match(r"(?i)ur", written):
            yield " " + written[1:]
        else:
            yield written
        depth = max(0, depth + (kind == "open") - (kind == "close"))
        # a statement may follow a colon: `if x: print y`
        first = kind == "colon" and depth == 0
        if first:
            statement = ""
    yield (")" if closing else "") + trailing


def _number(written: str) -> str:
    """Of the same length: `0777` and `10L`; what they come to does not matter here."""
    plain = re.sub(r"[lL]$", " ", written)
    return re.sub(r"^0+(?=[1-9])", lambda zeros: " " * len(zeros[0]), plain)

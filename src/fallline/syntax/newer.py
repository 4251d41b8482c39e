"""Grammar that is newer than the Python that runs fallline, spelled the older way with every token in its line and column.

A file written for Python 3.12 to 3.14 is right; that fallline runs on 3.11 is not the author's mistake. Rewritten are f-strings of
PEP 701 (the outer quotes, backslashes, line breaks and comments inside the braces), t-strings, type parameters, `type`
statements and `except A, B:`. What cannot be kept in an older f-string (a name inside it, mostly for a message) is blanked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["older"]

_START = re.compile(r"(?i)(?<!\w)(?:[rbuft]|[bft]r|r[bft])?('''|\"\"\"|'|\")")
_TYPED = re.compile(
    r"^([ \t]*(?:async[ \t]+def|def|class)[ \t]+\w+)(\[[^\n]*?\])(?=[ \t]*[(:])", re.M
)
_ALIAS = re.compile(r"^([ \t]*)type([ \t]+)(\w+)(\[[^\n=]*\])?(?=[ \t]*=[^=])", re.M)
_EXCEPT = re.compile(r"^([ \t]*except\*?[ \t]+[\w.]+)((?:[ \t]*,[ \t]*[\w.]+)+)(?=[ \t]*:)", re.M)


def older(text: str) -> str | None:
    """The text in older grammar; None where nothing in it is newer."""
    found = _older_strings(text)
    found = _TYPED.sub(lambda m: m[1] + " " * len(m[2]), found)
    found = _ALIAS.sub(_alias, found)
    found = _EXCEPT.sub(lambda m: m[1] + " " * len(m[2]), found)
    return found if found != text else None


def _alias(match: re.Match[str]) -> str:
    """`type Pair = ...` becomes `Pair      = ...`."""
    return (match[1] + match[3]).ljust(len(match[0]))


@dataclass
class _String:
    """A string literal from `start` to `end`; `fields` are the parts of an f-string between braces."""

    start: int
    end: int
    quote: str
    fields: list[tuple[int, int]]
    inside: list[_String]  # literals in its fields


def _older_strings(text: str) -> str:
    parts: list[str] = []
    done = 0
    for string in _strings(text, 0, len(text)):
        written = text[string.start : string.end]
        spelled = _spelled(text, string)
        if spelled != written:
            parts += [text[done : string.start], spelled]
            done = string.end
    return "".join([*parts, text[done:]])


def _strings(text: str, at: int, end: int) -> Iterator[_String]:
    """The literals of a stretch of code, comments passed over."""
    marks = re.compile(r"#|['\"]")
    while (mark := marks.search(text, at, end)) is not None:
        if mark[0] == "#":
            at = _line_end(text, mark.start())
            continue
        string = _string(text, mark.start(), at)
        yield string
        at = string.end


def _string(text: str, quote_at: int, begin: int) -> _String:
    """The literal whose quote is here; its prefix does not reach back before `begin`."""
    start = next(
        (s for s in range(max(begin, quote_at - 2), quote_at + 1) if _begins(text, s, quote_at)),
        quote_at,
    )
    opened = _START.match(text, start)
    quote = opened[1] if opened is not None else text[quote_at]
    formatted = bool(set("fFtT") & set(text[start:quote_at]))
    string = _String(start, len(text), quote, [], [])
    at = quote_at + len(quote)
    while at < len(text):
        if text.startswith(quote, at):
            string.end = at + len(quote)
            break
        if text[at] == "\\" and not (formatted and text[at + 1 : at + 2] == "{"):
            at += 2
        elif formatted and text.startswith("{{", at):
            at += 2
        elif formatted and text[at] == "{":
            at = _field(text, at, string)
        elif text[at] == "\n" and len(quote) == 1:
            string.end = at  # not closed: broken, or something that is not understood here
            break
        else:
            at += 1
    return string


def _begins(text: str, start: int, quote_at: int) -> bool:
    found = _START.match(text, start)
    return found is not None and found.end() - len(found[1]) == quote_at


def _field(text: str, at: int, string: _String) -> int:
    """Pass over `{...}` of an f-string; returns where it ends."""
    begin, depth = at, 0
    while at < len(text):
        here = text[at]
        if here in "([{":
            depth += 1
        elif here in ")]}":
            depth -= 1
            if not depth:
                string.fields.append((begin, at + 1))
                return at + 1
        elif here == "#":
            at = _line_end(text, at)
            continue
        elif here in "'\"":
            inner = _string(text, at, begin)
            string.inside.append(inner)
            at = inner.end
            continue
        elif here == ":" and depth == 1:
            at = _format(text, at + 1, string)
            continue
        at += 1
    return at


def _format(text: str, at: int, string: _String) -> int:
    """Pass over a format specification up to the brace that closes its field."""
    while at < len(text) and text[at] != "}":
        if text[at] == "{":
            at = _field(text, at, string)
        elif text[at] == "\n" or text.startswith(string.quote, at):
            return at
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _spelled(text: str, string: _String) -> str:
    """The literal as an older Python reads it, of the same length and with the same line breaks."""
    written = text[string.start : string.end]
    if not string.fields:
        return _without_template(written, string)
    if not _is_newer(text, string):
        return _without_template(written, string)
    swapped = _without_template(_swapped(text, string), string)
    return swapped if _parses(swapped) else _blanked(written)


def _is_newer(text: str, string: _String) -> bool:
    inner = [text[a:b] for a, b in string.fields]
    broken = len(string.quote) == 1 and any("\n" in part for part in inner)
    nested = any(_is_newer(text, literal) for literal in string.inside if literal.fields)
    return (
        nested
        or broken
        or any(string.quote in part or "\\" in part or "#" in part for part in inner)
    )


def _without_template(written: str, string: _String) -> str:
    """`t"..."` is read as `f"..."`: what it is made of counts here, not its type."""
    prefix = written[: written.index(string.quote[0])]
    return prefix.replace("t", "f").replace("T", "F") + written[len(prefix) :]


def _swapped(text: str, string: _String) -> str:
    """With the other kind of quote inside, and letters in place of backslashes."""
    written = list(text[string.start : string.end])
    other = "'" if string.quote[0] == '"' else '"'
    for inner in string.inside:
        body = text[inner.start : inner.end]
        if inner.quote != string.quote[0] or other in body:
            continue
        for at in range(inner.start, inner.end):
            if text[at] == inner.quote:
                written[at - string.start] = other
    for begin, end in string.fields:
        for at in range(begin, end):
            if text[at] == "\\":
                written[at - string.start] = "_"
    return "".join(written)


def _parses(literal: str) -> bool:
    try:
        ast.parse(f"({literal})")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _blanked(written: str) -> str:
    """An empty string of the same shape."""
    blank = re.sub(r"[^\n]", " ", written)
    if "\n" not in written:
        return '""' + blank[2:]
    return '"""' + blank[3:-3] + '"""' if _roomy(written) else '""' + blank[2:]


def _roomy(written: str) -> bool:
    first, *_, last = written.split("\n")
    return len(first) >= 3 and len(last) >= 3

"""A question without what a page or a console put around its code: HTML, prompts, line numbers, the marks of a quotation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fallline.triage.pasted import statements

__all__ = ["unwrapped"]

_OPENS = re.compile(r"\s*<pre\b[^>]*>\s*(?:<code\b[^>]*>)?", re.I)
_CLOSES = re.compile(r"(?:</code>)?\s*</pre>\s*", re.I)
_TAG = re.compile(r"</?(?:p|br|strong|em|b|i|ul|ol|li|h\d|hr|div|span|blockquote|code)\b[^>]*>", re.I)  # fmt: skip
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#39|#x27);")
_PROMPT = re.compile(r"^\s*(?:>>>|\.\.\.|In ?\[\d+\]:|\s{3,}\.\.\.:)(?: |$)")
_BEGINS = re.compile(r"^\s*(?:>>>|In ?\[\d+\]:) ?\S", re.M)
_NUMBERED = re.compile(r"^\s*(?P<n>\d{1,4})(?:[|:.)]|\t| (?=\s)| (?=\S))(?P<rest>.*)$|^\s*(?P<bare>\d{1,4})\s*$")  # fmt: skip
_ARROW = re.compile(r"^\s*-+>\s*\d+")
_QUOTE = re.compile(r"^\s*> ?(?!>)")
_FEWEST = 4  # lines that make a listing
_MOSTLY = 0.7  # of the quoted lines must be code


def unwrapped(text: str) -> str:
    """The text as it was written: only what is certainly around code goes."""
    if re.search(r"<pre\b", text, re.I):
        text = _OPENS.sub("\n```\n", text)
        text = _TAG.sub("", _CLOSES.sub("\n```\n", text))
    if _ENTITY.search(text):
        from html import unescape  # few questions come from a page

        text = unescape(text)
    lines = text.split("\n")
    if _BEGINS.search(text):
        lines = [_PROMPT.sub("", line) for line in lines]
    lines = _changed(lines, _numbered_runs, lambda line: _rest(line))
    lines = _changed(lines, _quoted_runs, lambda line: _QUOTE.sub("", line))
    return "\n".join(lines)


def _changed(
    lines: list[str],
    runs: Callable[[list[str]], Iterator[range]],
    change: Callable[[str], str],
) -> list[str]:
    inside = {n for run in runs(lines) for n in run}
    return [change(line) if n in inside else line for n, line in enumerate(lines)]


def _rest(line: str) -> str:
    match = _NUMBERED.match(line)
    return "" if match is None or match["rest"] is None else match["rest"]


def _numbered_runs(lines: list[str]) -> Iterator[range]:
    """Lines that count up by one, as a listing does; a notebook's traceback does too, around its arrow."""
    begin = 0
    while begin < len(lines):
        end, count = begin, None
        while end < len(lines) and (match := _NUMBERED.match(lines[end])) is not None:
            n = int(match["n"] or match["bare"])
            if count is not None and n != count + 1:
                break
            end, count = end + 1, n
        near = lines[max(0, begin - 1) : end + 1]
        if end - begin >= _FEWEST and not any(map(_ARROW.match, near)):
            stripped = [_rest(line) for line in lines[begin:end]]
            if len(statements(stripped)) >= _MOSTLY * len(stripped):
                yield range(begin, end)
        begin = max(end, begin + 1)


def _quoted_runs(lines: list[str]) -> Iterator[range]:
    """Quoted lines that are code."""
    begin = 0
    while begin < len(lines):
        end = begin
        while end < len(lines) and _QUOTE.match(lines[end]):
            end += 1
        stripped = [_QUOTE.sub("", line) for line in lines[begin:end]]
        filled = sum(bool(line.strip()) for line in stripped)
        if filled >= _FEWEST and len(statements(stripped)) >= _MOSTLY * filled:
            yield range(begin, end)
        begin = end + 1

"""What `fallline ask` does."""

from __future__ import annotations

import argparse
import sys

from fallline.errors import UsageError
from fallline.untrusted import printable

_LARGEST = 1_000_000
_STRAY = 0.1  # a pasted log may hold a few bytes of another encoding


def run(args: argparse.Namespace) -> int:
    """The exit status of one question."""
    question = _question(" ".join(args.question))
    from fallline.report.answer import markdown, text
    from fallline.triage.answer import answer
    from fallline.triage.evidence import gather

    reply = answer(question, gather(question, args.code, args.run), args.run or "")
    if args.output_format == "json":
        import json

        print(json.dumps(reply.as_dict(), indent=2, default=str))
        return 0
    show = markdown if args.output_format == "markdown" else text
    print(printable(show(reply, more=args.more)))
    return 0


def _question(given: str) -> str:
    raw = (
        sys.stdin.buffer.read(_LARGEST + 1)
        if given == "-"
        else given.encode(errors="surrogateescape")
    )
    if len(raw) > _LARGEST:
        raise UsageError(
            "the question is longer than a megabyte: ask about the part that matters, and give files with --code"
        )
    if b"\0" in raw:
        raise UsageError("the question is not text: it contains NUL bytes")
    text = raw.decode("utf-8", errors="replace").strip()
    if text.count("\ufffd") > _STRAY * len(text):
        raise UsageError("the question is not text: too much of it is not valid UTF-8")
    if not text:
        raise UsageError(
            'there is no question. Ask one: fallline ask "my loss is NaN after 200 steps"'
        )
    return text

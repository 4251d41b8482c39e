"""`fallline ask`: a question, with code and a run if there are any; measures before it prescribes."""

from __future__ import annotations

import argparse
import json
import sys

from fallline.errors import UsageError

HELP = """\
Ask a training question. The answer says what is already known, what to measure next, which fixes apply under which
measured condition, what to avoid and why it tempts, and how to verify.

  fallline ask "my loss becomes NaN after epoch 3"
  fallline ask "is my accumulation right?" --code train.py
  fallline ask "why did it diverge?" --run fallline-runs/train-20261115-101500
  fallline ask - < question.txt
"""

_LARGEST = 1_000_000
_STRAY = 0.1  # a pasted log may hold a few bytes of another encoding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question",
        nargs="+",
        metavar="QUESTION",
        help="the question, quoted or not; - reads it from standard input",
    )
    parser.add_argument(
        "--code",
        action="append",
        default=[],
        metavar="FILE",
        help="training code the question is about (repeatable)",
    )
    parser.add_argument("--run", metavar="DIR", help="the folder of a watched run")
    parser.add_argument(
        "--output-format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text (default), markdown or json",
    )
    parser.add_argument(
        "--more",
        action="store_true",
        help="the whole answer, with the decision tree and what backs each statement",
    )


def run(args: argparse.Namespace) -> int:
    """The exit status of one question."""
    question = _question(" ".join(args.question))
    from fallline.triage.answer import answer
    from fallline.triage.evidence import gather

    reply = answer(question, gather(question, args.code, args.run), args.run or "")
    if args.output_format == "json":
        print(json.dumps(reply.as_dict(), indent=2, default=str))
        return 0
    from fallline.report.answer import markdown, text

    show = markdown if args.output_format == "markdown" else text
    print(show(reply, more=args.more))
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
        raise UsageError("the question holds NUL bytes: it is not text")
    text = raw.decode("utf-8", errors="replace").strip()
    if text.count("\ufffd") > _STRAY * len(text):
        raise UsageError("the question is not text: too much of it is no UTF-8")
    if not text:
        raise UsageError(
            'there is no question. Ask one: fallline ask "my loss is NaN after 200 steps"'
        )
    return text

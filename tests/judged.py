"""Questions with a rubric for each, and whether the default text of `fallline ask` satisfies it."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fallline.cli.main import main

__all__ = ["Question", "ask", "misses", "questions"]

HOME = Path(__file__).parent / "triage" / "questions"
LINES = 25
REFUSAL = 4  # lines that a question from another field deserves
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\"'(])")
_NOT_OURS = re.compile(
    r"(?i)not about|not a question about|does not look like|outside|only (answers|covers|knows)"
)


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and the patterns that a right answer holds."""

    name: str
    kind: str
    ask: str
    code: str
    verdict: str
    first: tuple[str, ...]
    must: tuple[str, ...]
    never: tuple[str, ...]


def questions(*files: str) -> list[Question]:
    """The questions of these files, in their order."""
    found: list[Question] = []
    for file in files:
        rows = tomllib.loads((HOME / file).read_text(encoding="utf-8"))["question"]
        for n, row in enumerate(rows, 1):
            patterns = (tuple(row.get(key, ())) for key in ("first", "must", "never"))
            name = f"{Path(file).stem}-{row['kind']}-{n}"
            found.append(
                Question(
                    name,
                    row["kind"],
                    row["ask"].strip(),
                    row.get("code", ""),
                    row.get("verdict", ""),
                    *patterns,
                )
            )
    return found


def ask(question: Question) -> str:
    """What a person who asks in a terminal reads."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        arguments = ["ask", question.ask]
        if question.code:
            file = Path(folder) / "train.py"
            file.write_text(question.code, encoding="utf-8")
            arguments += ["--code", str(file)]
        status = main(arguments)
    assert status == 0, question.name
    return out.getvalue()


def misses(question: Question, text: str) -> Iterator[str]:
    """What is wrong with an answer, by its rubric; nothing when it is right."""
    flat = " ".join(text.split())
    lines = len(text.strip().splitlines())
    if question.kind == "out":
        if lines > REFUSAL or not _NOT_OURS.search(flat):
            yield "does not say in a sentence that it is not about training"
        return
    if lines > LINES:
        yield f"{lines} lines"
    begins = " ".join(_SENTENCE.split(flat)[:3])[:700]
    yield from (f"first: {p}" for p in question.first if not re.search(p, begins, re.I))
    yield from (f"must: {p}" for p in question.must if not re.search(p, flat, re.I))
    yield from (f"never: {p}" for p in question.never if re.search(p, flat, re.I))
    if question.verdict and not re.match(
        rf"(?i)\W*(?:{question.verdict.replace('depends', 'it depends|depends')})\b", flat
    ):
        yield f"verdict: {question.verdict}"

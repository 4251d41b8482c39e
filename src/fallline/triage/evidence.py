"""What came along with a question: code goes to the reader, a run folder gives its findings. Nothing is executed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from fallline.errors import RunError, UsageError
from fallline.finding import Finding

__all__ = ["code_in", "corrected", "gather"]

_FENCE = re.compile(r"```(?:py|python|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.S)
_LARGEST = 2_000_000


def gather(
    question: str, code: Sequence[str] = (), run: str | None = None
) -> tuple[list[Finding], str | None]:
    """The findings of all evidence, and the corrected code where the reader has certain fixes."""
    found: list[Finding] = []
    fixed: str | None = None
    texts = [(path, _read(path)) for path in code] or code_in(question)
    for path, text in texts:
        here, better = corrected(text, path)
        found += here
        fixed = fixed or better
    if run is not None:
        found += _of_run(Path(run))
    return found, fixed


def code_in(question: str) -> list[tuple[str, str]]:
    """Fenced Python in a question, as if it were a file."""
    blocks = [b for b in _FENCE.findall(question) if "\n" in b.strip() or "(" in b]
    return [("<question>", "\n".join(blocks))] if blocks else []


def corrected(text: str, path: str) -> tuple[list[Finding], str | None]:
    """The findings in a piece of code, and the code with the reader's fixes where each of them holds."""
    from fallline.reader import read_text

    found = [f for f in read_text(text, path) if f.code != "FL000" or path != "<question>"]
    fixed = text
    for _ in range(8):
        better = _one_fix(fixed, path)
        if better is None:
            break
        fixed = better
    return found, fixed if fixed != text else None


def _one_fix(text: str, path: str) -> str | None:
    """The text with one more mistake removed and none added."""
    from fallline.reader import read_text
    from fallline.syntax.edits import apply

    before = read_text(text, path)
    for finding in before:
        if finding.fix is None or finding.severity == "info":
            continue
        changed = apply(text, finding.fix.edits)
        if changed is not None and changed != text and len(read_text(changed, path)) < len(before):
            return changed
    return None


def _read(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); --code takes a Python file"
        ) from None
    if len(data) > _LARGEST:
        raise UsageError(
            f"{path} is larger than two megabytes; give the file with the training loop"
        )
    return data.decode("utf-8", errors="replace")


def _of_run(folder: Path) -> list[Finding]:
    findings = folder / "findings.json"
    if not findings.is_file():
        if any(folder.glob("rank*.sqlite")):
            from fallline.watcher.conclude import conclude

            return conclude(folder)[1]
        raise RunError(
            f"{folder} is no run folder: it has no findings.json. `fallline run --out {folder} train.py` makes one"
        )
    try:
        return [Finding.from_dict(d) for d in json.loads(findings.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"{findings} is damaged; `fallline report {folder}` writes it again"
        ) from None

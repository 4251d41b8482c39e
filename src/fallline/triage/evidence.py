"""What came along with a question: code goes to the reader, a run folder gives its findings. Nothing is executed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fallline.errors import RunError, UsageError
from fallline.finding import Finding

__all__ = ["code_in", "corrected", "gather"]

_FENCE = re.compile(r"```(?:py|python|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.S)
_LARGEST = 2_000_000
_PASTED = "<question>"
_IMPORTS = {
    "torch": "import torch",
    "nn": "import torch.nn as nn",
    "F": "import torch.nn.functional as F",
    "autocast": "from torch.amp import autocast",
    "GradScaler": "from torch.amp import GradScaler",
    "clip_grad_norm_": "from torch.nn.utils import clip_grad_norm_",
    "DDP": "from torch.nn.parallel import DistributedDataParallel as DDP",
    "DataLoader": "from torch.utils.data import DataLoader",
}


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
    return [(_PASTED, "\n".join(blocks))] if blocks else []


def corrected(text: str, path: str) -> tuple[list[Finding], str | None]:
    """The findings in a piece of code, and the code with the reader's fixes where each of them holds."""
    from fallline.reader import read_text

    head = _assumed(text) if path == _PASTED else ""
    found = [f for f in read_text(head + text, path) if f.code != "FL000" or path != _PASTED]
    fixed = head + text
    for _ in range(8):
        better = _one_fix(fixed, path)
        if better is None:
            break
        fixed = better
    shifted = [_moved(f, head.count("\n")) for f in found]
    return shifted, fixed.removeprefix(head) if fixed != head + text else None


def _assumed(text: str) -> str:
    """The imports that a pasted fragment leaves out because everybody knows them."""
    return "".join(
        f"{line}\n"
        for name, line in _IMPORTS.items()
        if re.search(rf"\b{name}\b", text)
        and not re.search(
            rf"import\b[^\n]*\b{name}\b|^{name} *=|(?:def|class) {name}\b", text, re.M
        )
    )


def _moved(finding: Finding, lines: int) -> Finding:
    """The finding where it stands in the fragment. Its fix is in the corrected code."""
    if not lines:
        return finding
    at = replace(finding.at, line=max(1, finding.at.line - lines))
    return replace(finding, at=at, fix=None, related={})


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

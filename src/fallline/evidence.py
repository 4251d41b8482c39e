"""What came along with a question: code goes to the reader, a run folder gives its findings. Nothing is executed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fallline.errors import RunError, UsageError
from fallline.finding import Finding
from fallline.triage.pasted import unfenced

__all__ = ["code_in", "corrected", "gather", "lines_back"]

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
    """Python in a question, as if it were a file: what is fenced, or else lines that can be nothing but code."""
    blocks = [b for b in _FENCE.findall(question) if "\n" in b.strip() or "(" in b]
    if not blocks and "```" not in question:
        blocks = [textwrap.dedent(unfenced(question))]
    return [(_PASTED, "\n".join(blocks))] if any(blocks) else []


def corrected(text: str, path: str) -> tuple[list[Finding], str | None]:
    """The findings in a piece of code, and the code with the fixes that hold: each was read again."""
    from fallline.check.fixing import Fixer
    from fallline.reader import read_paths

    head = _assumed(text) if path == _PASTED else ""
    given = {path: (head + text).encode()}
    readings = read_paths([path], roots=[str(Path(path).parent)], given=given)
    found = [f for r in readings for f in r.findings if f.code != "FL000" or path != _PASTED]
    fixer = Fixer(readings, lambda finding, sources: finding.severity != "info", ".", given, True)
    fixer.run()
    changed = fixer.state.changed.get(path)
    shifted = [_moved(f, head.count("\n")) for f in found]
    return shifted, changed.decode().removeprefix(head) if changed is not None else None


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
    """The finding where it stands in the fragment, its message too. Its fix is in the corrected code."""
    if not lines:
        return finding
    at = replace(finding.at, line=max(1, finding.at.line - lines))
    message = lines_back(finding.message, lines)
    return replace(finding, at=at, message=message, fix=None, related={})


def lines_back(message: str, lines: int) -> str:
    """A message about a text that was read with `lines` more lines before it."""
    return re.sub(r"\bline (\d+)", lambda m: f"line {int(m[1]) - lines}", message)


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
    except OSError as error:
        raise RunError(f"{findings} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(
            f"{findings} is damaged: delete it, and `fallline report {folder}` writes it again"
        ) from None

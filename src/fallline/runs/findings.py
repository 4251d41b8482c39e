"""findings.json of a run folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fallline.errors import RunError
from fallline.files import write_atomically
from fallline.finding import Finding
from fallline.runs import schema
from fallline.runs.schema import Damaged
from fallline.untrusted import read_file

__all__ = ["findings_text", "read_findings", "write_findings"]

_LARGEST = 100_000_000  # bytes


def findings_text(found: list[Finding]) -> str:
    """Findings as strict JSON: a NaN in the evidence becomes the text "NaN"."""
    return json.dumps([_strict(f.as_dict()) for f in found], indent=2, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, dict):
        return {str(k): _strict(v) for k, v in value.items()}
    return [_strict(v) for v in value] if isinstance(value, list | tuple) else value


def write_findings(folder: Path, found: list[Finding]) -> Path:
    """findings.json, whole or not at all."""
    target = folder / "findings.json"
    try:
        write_atomically(str(target), (findings_text(found) + "\n").encode())
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def read_findings(folder: Path) -> list[Finding]:
    """What findings.json holds; nothing where there is none."""
    file = folder / "findings.json"
    try:
        if not file.exists():
            return []
        written = schema.json_of(read_file(file, _LARGEST).decode(), "it")
        if not isinstance(written, list):
            raise Damaged("it is not a list")
        return [schema.finding(one, "an entry") for one in written]
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise RunError(f"{file} is damaged ({error}): {_again(folder)}") from None


def _again(folder: Path) -> str:
    """How findings that are lost come back."""
    if any(folder.glob("rank*.sqlite")):
        return f"delete it, and `fallline report {folder}` writes it again"
    return (
        "nothing is left to write it again from; watch the run once more: `fallline run train.py`"
    )

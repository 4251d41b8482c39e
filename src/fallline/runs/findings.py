"""findings.json of a run folder."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from fallline.errors import RunError
from fallline.finding import Finding

__all__ = ["findings_text", "write_findings"]


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
    fresh = folder / f".findings.{os.getpid()}.json"
    try:
        fresh.write_text(findings_text(found) + "\n")
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise RunError(f"cannot write {target}: {error}") from error
    return target

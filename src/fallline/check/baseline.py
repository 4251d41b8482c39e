"""A baseline: the findings a project already has, so that only new ones are reported.

A finding is known again by its code, its path, the function around it and its line with the spaces evened out, so it
survives moving code up and down, and shows again when the line itself is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence

from fallline.check.sources import Sources
from fallline.errors import UsageError
from fallline.files import write_atomically
from fallline.finding import Finding
from fallline.untrusted import parse_json, read_file

__all__ = ["fingerprint", "load", "without_known", "write"]

Key = tuple[str, str, str, str]
_LARGEST = 100_000_000  # bytes
_FIELDS = ("code", "path", "function", "line_hash")


def fingerprint(finding: Finding, sources: Sources) -> tuple[str, str]:
    """The function around a finding, and a short hash of its line: what stays when code moves."""
    text = sources.text(finding.at.path)
    number = (
        text.module_line(finding.at.line, finding.evidence.get("cell")) if text is not None else 0
    )
    line = " ".join(text.line(number).split()) if text is not None else ""
    function = text.span(number).function if text is not None else ""
    return function, hashlib.blake2b(line.encode(errors="replace"), digest_size=8).hexdigest()


def write(file: str, findings: Sequence[Finding], sources: Sources) -> int:
    """Write the baseline of these findings; the number of findings in it."""
    counts = Counter(_key(finding, file, sources) for finding in findings)
    rows = [
        dict(zip(_FIELDS, key, strict=True)) | {"count": count}
        for key, count in sorted(counts.items())
    ]
    body = json.dumps({"version": 1, "findings": rows}, indent=1) + "\n"
    try:
        write_atomically(file, body.encode())
    except OSError as error:
        raise UsageError(
            f"the baseline {file} cannot be written: {error.strerror or error}"
        ) from None
    return sum(counts.values())


def load(file: str) -> Counter[Key]:
    """The known findings and how often each is known."""
    try:
        book = parse_json(read_file(file, _LARGEST))
        known: Counter[Key] = Counter()
        for row in book["findings"]:
            known[
                str(row["code"]), str(row["path"]), str(row["function"]), str(row["line_hash"])
            ] += int(row["count"])
        return known
    except OSError as error:
        raise UsageError(
            f"the baseline {file} cannot be read: {error.strerror or error}. `--write-baseline {file}` makes it."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise UsageError(
            f"{file} is not a fallline baseline. `--write-baseline {file}` makes one."
        ) from None


def without_known(findings: Sequence[Finding], file: str, sources: Sources) -> list[Finding]:
    """The findings that the baseline does not know, or knows fewer of."""
    left = load(file)
    new = []
    for finding in findings:
        key = _key(finding, file, sources)
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(finding)
    return new


def _key(finding: Finding, file: str, sources: Sources) -> Key:
    folder = os.path.dirname(os.path.abspath(file))
    path = os.path.relpath(os.path.abspath(finding.at.path), folder).replace(os.sep, "/")
    return (finding.code, path, *fingerprint(finding, sources))

"""benchmarks/RESULTS.md: one section for one benchmark; each writes its own and leaves the others alone."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import date
from pathlib import Path

FILE = Path(__file__).parent / "RESULTS.md"
HEAD = "# Measured\n\nEach section names the script that produces it, the machine and the day.\n"


def machine() -> str:
    """Where and when, in one line."""
    name = next(
        (
            line.split(":", 1)[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor() or platform.machine(),
    )
    return (
        f"{date.today().isoformat()}, {os.cpu_count()} x {name}, Python {platform.python_version()}"
    )


def commit() -> str:
    """Of this checkout, with a + where files differ from it; `FALLLINE_COMMIT` where there is only a copy of the files."""
    given = os.environ.get("FALLLINE_COMMIT")
    if given:
        return given
    ask = ("git", "-C", str(FILE.parent), "describe", "--always", "--dirty=+", "--abbrev=8")
    done = subprocess.run(ask, capture_output=True, text=True)
    return done.stdout.strip() or "an unknown commit"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def write_section(name: str, body: str) -> None:
    """Put the section in place of the one of this name, or at the end."""
    text = FILE.read_text(encoding="utf-8") if FILE.exists() else HEAD
    section = f"## {name}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    FILE.write_text(text.rstrip() + "\n", encoding="utf-8")

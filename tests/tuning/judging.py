"""Runs scripts of this folder through `measure data`, each in a process of its own that is forked from one with everything imported."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass
class Judged:
    """What was said about one script."""

    name: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0
    text: str = ""

    @property
    def places(self) -> set[tuple[str, int]]:
        return {(f["code"], f["line"]) for f in self.findings}


def expected(script: Path) -> tuple[str, list[int]]:
    """The code in the first line, and the lines that are marked."""
    lines = script.read_text().splitlines()
    return lines[0][2:7], [n for n, line in enumerate(lines, 1) if line.endswith("# HERE")]


def warm() -> None:
    """Import once what every script imports."""
    sys.path.insert(0, str(HERE))
    import datasets
    import peft
    import tiny
    import transformers.trainer
    import trl

    from fallline.integrations import data  # noqa: F401 - imported for the children

    trl.SFTTrainer, trl.DPOTrainer, trl.GRPOTrainer  # noqa: B018 - lazily imported
    datasets.disable_progress_bars()
    assert peft and tiny and transformers


def judge(script: Path) -> Judged:
    """In a child process: nothing is left of one script when the next begins."""
    begun = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w") as out:
            json.dump(_in_child(script), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = json.loads(answer.read() or '{"error": "died"}')
    os.waitpid(child, 0)
    return Judged(
        script.stem,
        said.get("findings", []),
        said.get("error", ""),
        time.monotonic() - begun,
        said.get("text", ""),
    )


def _in_child(script: Path) -> dict[str, Any]:
    from fallline.instruments.script import Script
    from fallline.integrations.data import measure_script

    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            taught, _ = measure_script(Script(str(script)), batches=4, progress=None)
        return {"findings": [f.as_dict() for f in taught.findings], "text": taught.text()}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}

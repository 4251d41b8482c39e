"""Runs scripts of this folder through `measure data`, each in a process of its own that is forked from one with everything imported.

That one is started for this alone (`python judging.py`), so that nothing of the tests before is in it. It reads one request a line
and writes one answer a line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
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


@functools.cache
def warm() -> subprocess.Popen[str]:
    """The process that has imported what every script imports."""
    command = [sys.executable, str(Path(__file__).resolve())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _import_all() -> None:
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


def _asked(**request: str) -> dict[str, Any]:
    """What a child of that process answers."""
    process = warm()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def judge(script: Path, *, watched: bool = False) -> Judged:
    """In a child process: nothing is left of one script when the next begins. `watched`: under `run`, to the script's own end."""
    begun = time.monotonic()
    said = _asked(script=str(script), how="watched" if watched else "measured")
    return Judged(
        script.stem,
        said.get("findings", []),
        said.get("error", ""),
        time.monotonic() - begun,
        said.get("text", ""),
    )


def bits(script: Path, how: str) -> list[str]:
    """What the script has computed after each update: parameters and random state. `how`: alone, measured or watched."""
    steps: list[str] = _asked(script=str(script), how=how, bits="yes")["steps"]
    return steps


def _followed(script: Path, work: Callable[[Path], Any]) -> dict[str, Any]:
    from torch.optim import optimizer

    steps: list[str] = []
    optimizer.register_optimizer_step_post_hook(lambda o, *_: steps.append(_state(o)))
    work(script)
    return {"steps": steps}


def _state(optimizer: Any) -> str:
    import torch

    held = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        held.update(parameter.detach().float().numpy().tobytes())
    return held.hexdigest()


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it answers in a child process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said: dict[str, Any] = json.loads(answer.read() or '{"error": "died"}')
    os.waitpid(child, 0)
    return said


def _alone(script: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    runpy.run_path(str(script), run_name="__main__")


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


def _watched(script: Path) -> dict[str, Any]:
    from fallline.cli.main import main

    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    out = Path(tempfile.mkdtemp()) / "run"
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            main(["run", "--out", str(out), str(script)])
            atexit._run_exitfuncs()  # where a watched run is judged
        text = (out / "findings.json").read_text()
        return {"findings": json.loads(text), "text": text}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    finally:
        shutil.rmtree(out.parent)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what scripts print
    _import_all()
    ways = {"alone": _alone, "measured": _in_child, "watched": _watched}
    for line in sys.stdin:
        request = json.loads(line)
        script, work = Path(request["script"]), ways[request["how"]]
        if "bits" in request:
            said = _answer(lambda script=script, work=work: _followed(script, work))  # type: ignore[misc]
        else:
            said = _answer(lambda script=script, work=work: work(script))  # type: ignore[misc]
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    _serve()

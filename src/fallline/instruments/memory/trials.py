"""Remedies tried for real: the script once more, in a process of its own, with one remedy in place."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from typing import Any

from fallline.instruments.frame import Progress
from fallline.instruments.memory.measure import REMEDIES, Memory
from fallline.instruments.memory.remedies import Remedy
from fallline.instruments.script import Script

__all__ = ["try_remedies"]

_WORTH = 0.02  # of the peak: what is computed to save less is not tried
_UPDATES = 3  # from the second on, optimizer state is there


def try_remedies(memory: Memory, script: Script, seconds: float, progress: Progress) -> None:
    """Fill in `tried`, most promising first, as long as there is time. Ctrl-C leaves what is there."""
    _give_back()
    until = time.monotonic() + seconds
    known = [r for r in memory.remedies if r.name.partition("=")[0] in REMEDIES]
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        for remedy in known:
            remedy.problem = "not tried: one of several ranks"
        return
    for done, remedy in enumerate(known):
        left = until - time.monotonic()
        if remedy.problem or memory.peak - remedy.peak < _WORTH * memory.peak:
            continue
        if left < memory.seconds:
            remedy.problem = "not tried: no time left (--try-for)"
            continue
        progress.advance(done, f"trying {remedy.name}")
        try:
            _try(memory, script, remedy, left)
        except KeyboardInterrupt:
            remedy.problem = "not tried: interrupted"
            memory.partial = True
            return


def _try(memory: Memory, script: Script, remedy: Remedy, seconds: float) -> None:
    command = [sys.executable, "-m", "fallline", "measure", "memory"]
    command += ["--with", remedy.name, "--try-for", "0", "--updates", str(_UPDATES)]
    command += ["--output-format", "json", *(("-m",) if script.module else ())]
    try:
        done = subprocess.run(
            [*command, script.path, *script.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        remedy.problem = "not tried: no time left (--try-for)"
    except ValueError:
        remedy.problem = f"the try failed: {_last_line(done.stderr)}"
    else:
        if answer["partial"] or not answer["peak"]["bytes"]:
            remedy.problem = f"the try failed: {_last_line(done.stderr)}"
        else:
            remedy.tried = memory.peak - (_size(memory.to_json()) - _size(answer))


def _size(measured: dict[str, Any]) -> int:
    """The allocator knows better where there is one."""
    allocator = measured.get("allocator")
    return int(allocator["allocated_peak"] if allocator else measured["peak"]["bytes"])


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")[:120]


def _give_back() -> None:
    """What the first run still holds on a device would be missing for the tries."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()

"""Runs scripts quickly, watched or plain: torch is imported once, every script gets a fresh fork of that process.

`python specimens.py watched FOLDER` runs every `*.py` in FOLDER, two at a time, each with its run folder `NAME.run`; what a
script prints goes to `NAME.watched`. `plain` runs them without fallline, into `NAME.plain`.
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import gc
import os
import runpy
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any


def run_all(folder: Path, mode: str = "watched") -> None:
    """Run every script of a folder in a server process of its own."""
    subprocess.run([sys.executable, __file__, mode, str(folder)], check=True, timeout=600)


def run_once(factory: Any, name: str, scripts: dict[str, str], *modes: str) -> Path:
    """The folder of these scripts, run once for all workers of pytest-xdist: whoever comes first runs them."""
    base: Path = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".done").exists():
            for script, text in scripts.items():
                (folder / f"{script}.py").write_text(text)
            for mode in modes or ("watched",):
                run_all(folder, mode)
            (folder / ".done").touch()
    return folder


def run_one(script: Path, mode: str) -> int:
    """In a forked child, from the script's folder; the exit status."""
    out = os.open(script.with_suffix(f".{mode}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(script.parent)
    sys.argv = [script.name]
    if mode == "plain":
        runpy.run_path(str(script), run_name="__main__")
        return 0
    from fallline.cli.work.run import show
    from fallline.integrations.run import run_watched
    from fallline.taps import frames

    frames._frames._started_in = str(script.parent)
    guard = "off" if "guard off" in script.read_text().partition("\n")[0] else "skip"
    return run_watched(
        argparse.Namespace(
            out=str(script.with_suffix(".run")),
            target=script.name,
            arguments=[],
            module=False,
            budget=1_000.0,  # every update is watched: which ones a busy machine leaves out is not what these test
            guard=guard,
            guard_limit="aside",
            log=None,
            check_hardware=0,
        ),
        show,
    )


def serve(folder: Path, mode: str) -> None:
    import torch
    import torch._dynamo  # optimizers import it on first use: seconds that every fork would pay

    import fallline.cli.work.run  # all imported once, before the forks
    import fallline.integrations.run
    import fallline.report.run
    import fallline.rules
    import fallline.watcher.judge
    import fallline.watcher.session

    fallline.rules.all_rules()
    _warm()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a fork that collects would copy every page
    waiting = sorted(folder.glob("*.py"))
    running: set[int] = set()
    while waiting or running:
        if waiting and len(running) < 2:
            script = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_child(script, mode))
            running.add(pid)
        else:
            pid, _ = os.wait()
            running.discard(pid)


def _warm() -> None:
    """One update of each kind: what torch makes and imports on first use, every fork would make again."""
    import torch

    with torch.random.fork_rng():
        model = torch.nn.Linear(2, 2)
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            optimizer = kind(model.parameters(), lr=0.1)
            data = torch.utils.data.TensorDataset(torch.ones(2, 2))
            for (x,) in torch.utils.data.DataLoader(data):
                model(x).sum().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()


def said_by_fallline(output: str) -> list[str]:
    """What fallline said, but for its line at the start, and the one at the end of a script without an update."""
    usual = ("fallline: watching ", "fallline: no optimizer stepped, so there is nothing to report")
    lines = [line for line in output.splitlines() if "fallline: " in line]
    return [line for line in lines if not line.startswith(usual)]


def _child(script: Path, mode: str) -> int:
    status = 1
    atexit._clear()
    try:
        status = run_one(script, mode)
        # as the interpreter ends: a fork of the server that ended by itself would end the server's own things as well
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    script.with_suffix(f".{mode}-status").write_text(str(status))
    return status


if __name__ == "__main__":
    serve(Path(sys.argv[2]).resolve(), sys.argv[1])

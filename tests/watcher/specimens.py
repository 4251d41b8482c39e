"""Runs scripts under the watcher quickly: torch is imported once, every script gets a fresh fork of that process.

`python specimens.py FOLDER` runs every `*.py` in FOLDER, two at a time, each with its run folder `NAME.run`; what a script
prints goes to `NAME.out`. Results are the findings.json files.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path


def run_one(script: Path) -> None:
    """In a forked child: as `fallline run --out NAME.run NAME.py`, from the script's folder."""
    from fallline.watcher import frames
    from fallline.watcher.launch_run import run_watched

    out = os.open(script.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(script.parent)
    frames._started_in = str(script.parent)
    sys.argv = ["fallline"]
    arguments = argparse.Namespace(
        out=str(script.with_suffix(".run")), target=script.name, arguments=[], module=False, budget=1.0, guard="skip"
    )
    status = run_watched(arguments)
    print("exit status", status)


def main(folder: Path) -> None:
    import torch

    import fallline.rule
    import fallline.watcher.judge
    import fallline.watcher.session  # noqa: F401 - imported once, before the forks

    import torch._dynamo  # optimizers import it on first use: seconds that every fork would pay

    fallline.rule.all_rules()
    torch.set_num_threads(1)
    waiting = sorted(folder.glob("*.py"))
    running: set[int] = set()
    while waiting or running:
        if waiting and len(running) < 2:
            script = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                code = 0
                try:
                    run_one(script)
                except BaseException:
                    traceback.print_exc()
                    code = 1
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            running.add(pid)
        else:
            pid, _ = os.wait()
            running.discard(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

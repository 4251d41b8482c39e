"""Runs the matrix framework x case, and writes its table into docs/integrations.md.

python tests/integrations/matrix.py FOLDER          runs every program, each in a fork of one process that has imported everything
python tests/integrations/matrix.py --write         also writes the table
"""

from __future__ import annotations

import atexit
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import heads
from programs import CASES, EXTRAS, FRAMEWORKS, RANKS, program

from gloo import ATTEMPTS, aborted

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
TITLES = {
    "healthy": "healthy",
    "nan": "NaN",
    "unscaled": "unscaled accumulation",
    "desync": "ranks drift apart (2 processes)",
}


def write_programs(folder: Path) -> None:
    for framework in FRAMEWORKS:
        for case in CASES:
            home = folder / f"{framework}-{case}"
            home.mkdir(parents=True, exist_ok=True)
            (home / "train.py").write_text(program(framework, case))


def write_extras(folder: Path) -> None:
    for name, script in EXTRAS.items():
        home = folder / f"extra-{name}"
        home.mkdir(parents=True, exist_ok=True)
        (home / "train.py").write_text(script)


def run_all(folder: Path) -> None:
    """Every program that was written, in a server process of its own."""
    subprocess.run([sys.executable, __file__, str(folder)], check=True, timeout=3600)


def result(folder: Path, framework: str, case: str) -> list[dict[str, object]]:
    """The findings of one cell, without notes."""
    home = folder / f"{framework}-{case}"
    text = (home / "run" / "findings.json").read_text()
    return [f for f in json.loads(text) if f["severity"] != "info"]


def output(folder: Path, framework: str, case: str, rank: int = 0) -> str:
    return (folder / f"{framework}-{case}" / f"rank{rank}.txt").read_text()


def serve(folder: Path) -> None:
    import accelerate
    import lightning
    import pytorch_lightning
    import torch
    import torch._dynamo  # optimizers import it on first use
    import transformers

    import fallline.integrations.accelerate
    import fallline.integrations.fabric
    import fallline.integrations.transformers
    import fallline.report.run
    import fallline.rules
    import fallline.watcher.judge
    import fallline.watcher.session

    assert all((accelerate, lightning, pytorch_lightning, transformers))
    fallline.rules.all_rules()
    torch.set_num_threads(1)
    for home in sorted(folder.glob("*-*")):
        world = RANKS.get(home.name.rpartition("-")[2], 1)
        for _ in range(ATTEMPTS if world > 1 else 1):
            _launch(home, world)
            said = [(home / f"rank{rank}.txt").read_text() for rank in range(world)]
            if not any(map(aborted, said)):
                break
            for run in (home / "run", home / "fallline-runs"):
                shutil.rmtree(run, ignore_errors=True)


def _launch(home: Path, world: int) -> None:
    """The program on so many ranks, to its end."""
    port = _free_port()
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os._exit(_child(home, rank, world, port))
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _child(home: Path, rank: int, world: int, port: int) -> int:
    out = os.open(home / f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(home)
    sys.argv = ["train.py"]
    sys.modules.pop("fallline.integrations.lightning", None)
    if "pytorch_lightning" not in home.name:
        sys.modules.pop("pytorch_lightning")
    else:
        sys.modules.pop("lightning.pytorch")
    if world > 1:  # what torchrun sets
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_RUN_ID="matrix",
        )
    from fallline.taps import frames

    frames._frames._started_in = str(home)
    status = 0
    try:
        runpy.run_path("train.py", run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error  # as the interpreter does, before it ends
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    (home / f"rank{rank}.status").write_text(str(status))
    return status


def table(folder: Path) -> str:
    """The results as Markdown."""
    from importlib.metadata import version

    rows = [
        "| framework | " + " | ".join(TITLES.values()) + " |",
        "|---|" + "---|" * len(TITLES),
    ]
    for framework in FRAMEWORKS:
        package = {"fabric": "lightning"}.get(framework, framework)
        cells = []
        for case in CASES:
            found = result(folder, framework, case)
            cells.append(
                ", ".join(f"{f['code']} at line {f['line']}" for f in found) or "nothing found"
            )
        rows.append(f"| {framework} {version(package)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def exact_table(folder: Path) -> str:
    """How far off the big batch's updates the frameworks are, alone and with exact accumulation."""
    import test_exact as exact

    from fallline.integrations.lightning import ExactAccumulation

    rows = ["| | alone | with exact accumulation |", "|---|---|---|"]
    for by_token, what in ((True, "by token"), (False, "remainder")):
        truth = exact.big_batches(exact.WINDOWS, by_token=by_token)
        callback = ExactAccumulation(mean_over=exact.tokens if by_token else None)
        pairs = {
            "Lightning": (exact.by_lightning(folder), exact.by_lightning(folder, callback)),
            "Accelerate": (
                exact.by_accelerate(exact=False),
                exact.by_accelerate(exact=True, by_token=by_token),
            ),
        }
        for framework, (alone, corrected) in pairs.items():
            far, near = exact.off(alone, truth), exact.off(corrected, truth)
            rows.append(f"| {framework}, {what} | {far:.0%} | {near:.0e} |")
    return "\n".join(rows)


def written(text: str, name: str, block: str) -> str:
    """The page with this table between its marks."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}{block}\n{end}", text, flags=re.DOTALL)


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        serve(Path(sys.argv[1]).resolve())
        return
    with tempfile.TemporaryDirectory() as name:
        write_programs(Path(name))
        run_all(Path(name))
        text = written(PAGE.read_text(encoding="utf-8"), "matrix", table(Path(name)))
        text = written(text, "exact", exact_table(Path(name)))
        text = written(text, "heads", heads.table(Path(name)))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Is the one thing that changed between two runs named first, and are runs that differ by noise alone said to be the same?

    python benchmarks/diff.py [--only TEXT] [--jobs N] [--kept FILE] [--write]

Every pair is two real runs of `diff_subject.py` under `fallline run`, in folders of their own, compared with `fallline diff`. Most changes are
hidden: the code, the command line and the environment that is recorded are the same, so the numbers have to show it.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from results import write_section
from side_by_side import answers, give, made, options

from fallline.cli import main as cli
from fallline.diff import compare
from fallline.report.json import plain
from fallline.runs.read import read_run
from fallline.untrusted import json_text

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


@dataclass(frozen=True)
class Side:
    """One run: its arguments, what is hidden in it, its files."""

    arguments: str = ""
    hidden: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    edit: tuple[str, str] = ("", "")  # of the script
    corrupt: int | None = None  # a sample of the data
    scale: float = 1.0  # of the data
    version: str = ""  # of a package that the script imports
    config: str = ""


@dataclass(frozen=True)
class Planted:
    """A pair with one change. `kind` and `says`: what must come first; `update` and `module`: where that is known."""

    name: str
    b: Side
    kind: str
    says: str
    a: Side = field(default_factory=Side)
    update: int | None = None
    module: str | None = None
    same: bool = False


def _variable(**names: str) -> tuple[tuple[str, str], ...]:
    return tuple(names.items())


PLANTED = (
    Planted("seed", Side(hidden="seed=1"), "options", "seed"),
    Planted("order of samples", Side(hidden="order=2"), "data", "order of samples", update=0),
    Planted("initialisation of a layer", Side(hidden="init=1"), "initialisation", "mid.weight", module="mid"),
    Planted("learning rate, hidden", Side(hidden="lr=0.0011"), "learning-rate", "learning rate", update=0),
    Planted("learning rate, an option", Side("--lr 0.002"), "options", "lr: 0.001 → 0.002"),
    Planted("learning rate of the second group", Side(hidden="head=1.5"), "learning-rate", "group 1", update=0),
    Planted("warm-up", Side(hidden="warm=11"), "learning-rate", "learning rate", update=0),
    Planted("weight decay", Side(hidden="decay=0.02"), "optimizer", "weight_decay"),
    Planted("beta", Side(hidden="beta=0.99"), "optimizer", "betas"),
    Planted("optimizer", Side(hidden="optimizer=Adam"), "optimizer", "AdamW → Adam"),
    Planted("clip value", Side(hidden="clip=0.5"), "optimizer", "clipping"),
    Planted("batch size", Side(hidden="batch=48"), "data", "batch size"),
    Planted("micro-batches", Side(hidden="pieces=2"), "options", "micro-batches"),
    Planted("dropout", Side(hidden="dropout=0.2"), "options", "drop.p", module="drop"),
    Planted("autocast", Side(hidden="autocast=1"), "options", "autocast"),
    Planted("dtype of the model", Side(hidden="dtype=float64"), "initialisation", "dtype"),
    Planted("label smoothing, hidden", Side(hidden="smoothing=0.01"), "numbers", "the loss", update=0),
    Planted("label smoothing, an option", Side("--label-smoothing 0.1"), "options", "label_smoothing"),
    Planted("one gradient doubled at update 20", Side(hidden="doubled=20"), "numbers", "mid", update=20, module="mid"),
    Planted("a layer frozen at update 12", Side(hidden="frozen=12"), "numbers", "mid", update=12, module="mid"),
    Planted("corrupted sample", Side(corrupt=137), "data", "sample 137"),
    Planted("data file", Side(scale=1.01), "data", "values", update=0),
    Planted("configuration file", Side("--config c.yaml", config="smoothing: 0.2\n"), "options", "smoothing: 0.2", Side("--config c.yaml", config="smoothing: 0.1\n")),
    Planted("library version", Side(version="1.1"), "environment", "tinylib", Side(version="1.0"), same=True),
    Planted("code edit", Side(edit=("model(px)", "model(px) * 1.01")), "code", "model(px) * 1.01"),
    Planted("thread count", Side(environment=_variable(OMP_NUM_THREADS="2")), "environment", "threads", Side(environment=_variable(OMP_NUM_THREADS="1")), same=True),
)  # fmt: skip


def _noisy(arguments: str, size: str, *, forward: bool = False) -> Side:
    more = _variable(FORWARD="1") if forward else ()
    return Side(arguments, environment=(*_variable(NOISE=size), *more))


NOISE = (
    ("threads, convolutions", Side("--model Conv", environment=_variable(OMP_NUM_THREADS="1")), Side("--model Conv", environment=_variable(OMP_NUM_THREADS="2"))),
    ("gradients, AdamW", _noisy("", "1e-7"), None),
    ("gradients, SGD at 0.5, 400 updates", _noisy("--optimizer SGD --lr 0.5 --updates 400", "1e-7"), None),
    ("gradients, AdamW at 0.02, 600 updates", _noisy("--lr 0.02 --updates 600", "1e-7"), None),
    ("forward and gradients", _noisy("", "1e-7", forward=True), None),
    ("convolutions and batch norm", _noisy("--model Conv --updates 200", "1e-7", forward=True), None),
    ("attention, AdamW at 0.01, 300 updates", _noisy("--model Attention --lr 0.01 --updates 300", "1e-7", forward=True), None),
    ("LSTM, 300 updates", _noisy("--model Recurrent --lr 0.01 --updates 300", "1e-7", forward=True), None),
    ("bfloat16, gradients", _noisy("--autocast --updates 200", "2e-3"), None),
    ("bfloat16, forward and gradients", _noisy("--autocast --updates 200", "2e-3", forward=True), None),
    ("other results folder", Side("--out one"), Side("--out two")),
    ("oneDNN kernels for an older processor", Side("--model Conv"), Side("--model Conv", environment=_variable(DNNL_MAX_CPU_ISA="SSE41"))),
)  # fmt: skip


class Bench:
    """Runs sides, each once, in folders below one that goes away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()

    def run(self, side: Side) -> Path:
        number = next(self._numbers)
        home, library = self.folder / f"side{number}", self.folder / f"lib{number}"
        home.mkdir()
        script = (HERE / "diff_subject.py").read_text()
        if side.edit[0]:
            assert side.edit[0] in script
            script = script.replace(*side.edit)
        if side.version:
            script = script.replace("import torch\n", "import tinylib\nimport torch\n", 1)
            package = library / "tinylib"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(f'__version__ = "{side.version}"\n')
        (home / "train.py").write_text(script)
        (home / "c.yaml").write_text(side.config)
        self._data(home, side)
        variables = {"OMP_NUM_THREADS": "1", **dict(side.environment), "HIDDEN": side.hidden}
        words = ["run", "--out", "run", "train.py", *side.arguments.split()]
        if side.version or any(name in _AT_IMPORT for name, _ in side.environment):
            _in_a_process(home, words, variables, library)
        else:
            _in_a_fork(home, words, variables)
        return home / "run"

    def _data(self, home: Path, side: Side) -> None:
        made = torch.Generator().manual_seed(7)
        x, y = torch.randn(640, 32, generator=made), torch.randint(0, 10, (640,), generator=made)
        x[torch.arange(640), y] += 2.0
        x *= side.scale
        if side.corrupt is not None:
            x[side.corrupt] = 3 * x[side.corrupt].flip(0)
        torch.save({"x": x, "y": y}, home / "data.pt")


_AT_IMPORT = ("OMP_NUM_THREADS", "DNNL_MAX_CPU_ISA")  # torch reads these when it is imported


def _in_a_process(home: Path, words: list[str], variables: dict[str, str], library: Path) -> None:
    paths = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{library}"}
    command = [sys.executable, "-m", "fallline", *words]
    done = subprocess.run(
        command, cwd=home, env={**os.environ, **paths, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)


def _in_a_fork(home: Path, words: list[str], variables: dict[str, str]) -> None:
    """The same command, without importing torch again."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(home)
            os.environ.update(variables)
            said = os.open("said.txt", os.O_CREAT | os.O_WRONLY)
            os.dup2(said, 1)
            os.dup2(said, 2)
            status = cli.main(words)
            atexit._run_exitfuncs()
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError((home / "said.txt").read_text())


def diff(a: Path, b: Path) -> tuple[int, dict[str, Any]]:
    found = compare(read_run(a), read_run(b))
    return 0 if found.same else 1, json.loads(json_text(plain(found.to_json())))


def judged(pair: Planted, status: int, found: dict[str, Any]) -> bool:
    first = found["first"] or {}
    return (
        first.get("kind") == pair.kind
        and pair.says in first["what"]
        and (pair.update is None or first["update"] == pair.update)
        and (pair.module is None or first["module"] == pair.module)
        and status == (0 if pair.same else 1)
    )


def one(name: str) -> dict[str, Any]:
    """What `diff` says of a pair, and whether that is right."""
    torch.set_num_threads(1)  # for the forks: so small a model only waits for a second thread
    folder = Path(tempfile.mkdtemp(prefix="fallline-diff-"))
    bench = Bench(folder)
    try:
        if name in CHANGES:
            pair = CHANGES[name]
            status, found = diff(bench.run(pair.a), bench.run(pair.b))
            return {"right": judged(pair, status, found), "found": found}
        a, b = SAME[name]
        status, found = diff(bench.run(a), bench.run(b or a))
        return {"right": status == 0, "found": found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


CHANGES = {pair.name: pair for pair in PLANTED}
SAME = {f"noise: {name}": (a, b) for name, a, b in NOISE}


def row(answer: dict[str, Any]) -> str:
    """Of the table for changes, or of the one for noise."""
    name, right, found = answer["name"], answer.get("right", False), answer.get("found")
    if found is None:
        return f"| {name} | **wrong** {answer['failed']} |"
    first = found["first"] or {"kind": "none", "what": "nothing"}
    if name in CHANGES:
        return f"| {name} | {'' if right else '**wrong** '}{first['kind']}: {first['what']} |"
    noise = found["noise"]
    begins = "none" if noise["onset"] is None else f"{noise['first']:.1e} at update {noise['onset']}"  # fmt: skip
    said = "same" if right else f"**different**: {first['what']}"
    return f"| {name.removeprefix('noise: ')} | {said} | {begins} | {noise['largest']:.1e} |"


def main() -> int:
    given = options(__doc__).parse_args()
    if given.one:
        give(one(given.one))
        return 0
    found = {}
    for answer in answers(__file__, (*CHANGES, *SAME), given):
        found[answer["name"]] = answer
        print("ok " if answer.get("right") else "BAD", row(answer), flush=True)
    changes = [found[name] for name in CHANGES if name in found]
    noise = [found[name] for name in SAME if name in found]
    right, silent = ([a for a in group if a.get("right")] for group in (changes, noise))
    body = "\n".join(
        [f"`python benchmarks/diff.py --write`; {made(found.values())}.", "",
         f"One planted change, named first: **{len(right)} of {len(changes)}**. Noise alone, said to be the same: **{len(silent)} of {len(noise)}**.", "",
         "| change | first difference |", "|---|---|", *map(row, changes), "",
         "| noise | verdict | gap at first | largest gap |", "|---|---|---|---|", *map(row, noise)]
    )  # fmt: skip
    print(body)
    if given.write:
        write_section("diff", body)
    return 0 if len(right) == len(changes) and len(silent) == len(noise) else 1


if __name__ == "__main__":
    sys.exit(main())

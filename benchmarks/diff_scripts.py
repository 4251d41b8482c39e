"""`fallline diff` and `fallline bisect` on public training scripts and on their real histories.

    python benchmarks/diff_scripts.py --mirror DIR [--site DIR] [--work DIR] [--only TEXT] [--write]

`--mirror` and `--site` as for real_scripts.py. A pair is two runs of one script with one change, or with none. A history is cloned from the mirror
without a change, and `bisect` has to name the commit that is known to change the training. What came out is kept in `--work`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from public_scripts.data import WRITERS
from public_scripts.entry import Real, Swap
from public_scripts.scripts import SCRIPTS
from real_scripts import Stage
from results import machine, write_section

SECONDS = 900
BY_NAME = {real.name: real for real in SCRIPTS}


@dataclass(frozen=True)
class Pair:
    """Two runs of a script. `kind` and `says`: what has to come first; none where they differ by noise alone."""

    script: str
    change: str
    kind: str = ""
    says: str = ""
    more: str = ""  # arguments of the second run
    swap: Swap | None = None  # a code edit of the second run
    threads: str = "1"  # of the second run
    same: bool = False

    @property
    def name(self) -> str:
        return f"diff {self.script}: {self.change}"


_LOSS = Swap("loss = F.nll_loss(output, target)\n", "loss = 1.01 * F.nll_loss(output, target)\n")
PAIRS = (
    Pair("mnist", "none", same=True),
    Pair("mnist", "two threads", "environment", "threads: 1 → 2", threads="2", same=True),
    Pair("mnist", "seed", "options", "seed: 1 → 2", "--seed 2"),
    Pair("mnist", "learning rate", "options", "lr: 1.0 → 0.9", "--lr 0.9"),
    Pair("mnist", "loss times 1.01", "code", "1.01 * F.nll_loss", swap=_LOSS),
    Pair("nanogpt", "none", same=True),
    Pair("nanogpt", "two threads", "environment", "threads: 1 → 2", threads="2", same=True),
    Pair("nanogpt", "beta2", "options", "beta2", "--beta2=0.95"),
    Pair("nanogpt", "learning rate", "options", "learning_rate", "--learning_rate=9e-4"),
    Pair("nanogpt", "seed", "code", "1338", swap=Swap("torch.manual_seed(1337 + seed_offset)", "torch.manual_seed(1338 + seed_offset)")),
    Pair("run-clm", "none", same=True),
    Pair("run-clm", "weight decay", "options", "weight_decay", "--weight_decay 0.1"),
    Pair("run-clm", "seed", "options", "seed", "--seed 7"),
    Pair("run-clm", "learning rate", "options", "learning_rate", "--learning_rate 1e-4"),
    Pair("run-clm", "output folder", same=True, more="--output_dir other"),
    Pair("fabric-mnist", "none", same=True),
    Pair("fabric-mnist", "two threads", "environment", "threads: 1 → 2", threads="2", same=True),
    Pair("fabric-mnist", "learning rate", "options", "lr: 1.0 → 0.9", "--lr 0.9"),
    Pair("fabric-mnist", "gamma", "options", "gamma: 0.7 → 0.6", "--gamma 0.6"),
)  # fmt: skip


@dataclass(frozen=True)
class Search:
    """A bisection. `expected`: part of the step that has to be named; `kind` of its first difference."""

    script: str
    what: str
    good: str  # a commit, or options
    bad: str
    arguments: str
    expected: str
    says: str
    repo: str = ""  # a history
    data: str = ""  # its writer, and what is linked
    link: tuple[str, ...] = ()
    updates: int = 10

    @property
    def name(self) -> str:
        return f"bisect {self.script}: {self.what}"


_NANO = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --eval_interval=100 --log_interval=20 --block_size=32 "
    "--batch_size=8 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=40 --dropout=0.0 --gradient_accumulation_steps=4 --always_save_checkpoint=False"
)
_LINK = ("data/shakespeare_char/train.bin", "data/shakespeare_char/val.bin", "data/shakespeare_char/meta.pkl")  # fmt: skip
_MNIST = "--epochs 1 --no-cuda --batch-size 16 --test-batch-size 50"
SEARCHES = (
    Search("train.py", "loss not scaled for accumulation", "0d8fbd11", "b288f4cf", _NANO, "553f949f", "scale the loss", "karpathy/nanoGPT", "shakespeare", _LINK),
    Search("train.py", "warm-up from 0", "7339b904", "3adf61e1", _NANO, "93a43d9a", "learning rate", "karpathy/nanoGPT", "shakespeare", _LINK),
    Search("mnist/main.py", "dropout", "49ec0bd", "37a1866", _MNIST, "0f0c913", "Dropout", "pytorch/examples", "mnist ../data", ("../data",)),
    Search("run-clm", "options", "--seed 42 --weight_decay 0 --max_grad_norm 1.0 --logging_steps 500 --lr_scheduler_type linear", "", "--seed 42 --weight_decay 0 --max_grad_norm 0.1 --logging_steps 5 --lr_scheduler_type constant", "--max_grad_norm 0.1", "clipping"),
    Search("ppo", "options", "--seed 1 --gamma 0.99 --clip-coef 0.2 --ent-coef 0.01 --num-steps 128", "", "--seed 1 --gamma 0.99 --clip-coef 0.2 --ent-coef 0.02 --num-steps 128 --exp-name b", "--ent-coef 0.02", "ent_coef"),
)  # fmt: skip


@dataclass
class Came:
    """What came out."""

    fine: bool
    said: str
    seconds: float
    runs: int = 2


class Bench:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._first: dict[str, Path] = {}

    def pair(self, pair: Pair) -> Came:
        real = BY_NAME[pair.script]
        begun = time.monotonic()
        if pair.script not in self._first:
            self._first[pair.script] = self._run(real, f"{real.name}-first", (), "1")
        swaps = (pair.swap,) if pair.swap else ()
        other = replace(real, args=f"{real.args} {pair.more}")
        second = self._run(other, f"{real.name}-second", swaps, pair.threads)
        words = ["diff", str(self._first[pair.script]), str(second), "--output-format", "json"]
        status, answer, error = self._ours(words, Path.cwd(), real)
        first = answer.get("first") or {}
        what = f"{first.get('kind')}: {first.get('what')}" if first else "no difference"
        fine = status == (0 if pair.same else 1) and pair.says in what and pair.kind in what
        verdict = "the same" if answer.get("same") else "different"
        return Came(fine, f"{verdict}; {what}{error}", time.monotonic() - begun)

    def _run(self, real: Real, name: str, swaps: tuple[Swap, ...], threads: str) -> Path:
        folder, out = self.stage.lay(real, "diffed", swaps, bits=False), self.stage.work / "runs" / name  # fmt: skip
        shutil.rmtree(out, ignore_errors=True)
        script = folder / real.script
        command = [sys.executable, "-m", "fallline", "run", "--out", str(out), script.name]
        variables = {**self.stage.environment(real, folder), "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [*command, *shlex.split(real.args)], cwd=script.parent, env=variables, capture_output=True, text=True, timeout=SECONDS
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{real.name}: {done.stderr[-1500:]}")
        return out

    def search(self, search: Search) -> Came:
        home, real, words = self._laid(search)
        before = _files(home)
        begun = time.monotonic()
        words = ["bisect", "--output-format", "json", "--updates", str(search.updates), *words]
        status, answer, error = self._ours(words, home, real)
        runs = error.count("\nfallline:") + error.startswith("fallline:") + 2
        first = (answer.get("diff") or {}).get("differences") or []
        what = f"{answer.get('first')}; {'; '.join(d['what'] for d in first)}"
        fine = status == 1 and search.expected in str(answer.get("first")) and before == _files(home)  # fmt: skip
        fine = fine and search.says.lower() in what.lower()
        return Came(fine, what if answer else error[-300:], time.monotonic() - begun, runs)

    def _laid(self, search: Search) -> tuple[Path, Real, list[str]]:
        if not search.repo:
            real = BY_NAME[search.script]
            home = (self.stage.lay(real, "bisected", bits=False) / real.script).parent
            good = ["--good-options", f"{real.args} {search.good}"]
            return home, real, [*good, Path(real.script).name, *shlex.split(f"{real.args} {search.arguments}")]  # fmt: skip
        clone = self.stage.work / "clones" / search.repo.replace("/", "+")
        if not clone.exists():
            mirror = self.stage.mirror / search.repo.replace("/", "+") / "repo"
            subprocess.run(["git", "clone", "--quiet", str(mirror), str(clone)], check=True)
        script = clone / search.script
        home = script.parent
        WRITERS[search.data](home)
        links = [word for path in search.link for word in ("--link", path)]
        words = ["--good", search.good, "--bad", search.bad, *links, script.name]
        return home, Real(search.script, search.repo, search.script, ()), [*words, *shlex.split(search.arguments)]  # fmt: skip

    def _ours(self, words: list[str], home: Path, real: Real) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            [sys.executable, "-m", "fallline", *words], cwd=home, env=self.stage.environment(real, home), capture_output=True, text=True, timeout=SECONDS
        )  # fmt: skip
        try:
            return done.returncode, json.loads(done.stdout), done.stderr if words[0] == "bisect" else ""  # fmt: skip
        except ValueError:
            return done.returncode, {}, done.stdout + done.stderr


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".git"} & set(path.parts)
    }


def _all(bench: Bench, only: str) -> Iterator[tuple[str, Any]]:
    for pair in PAIRS:
        if only in pair.name:
            yield pair.name, lambda pair=pair: bench.pair(pair)
    for search in SEARCHES:
        if only in search.name:
            yield search.name, lambda search=search: bench.search(search)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/diff-scripts"))
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true", help="also what is kept")
    parser.add_argument("--write", action="store_true", help="the section of RESULTS.md")
    args = parser.parse_args()
    stage = Stage(args.mirror.resolve(), args.site and args.site.resolve(), args.work.resolve())
    bench, kept = Bench(stage), args.work / "kept.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    rows, right = [], 0
    for name, measure in _all(bench, args.only):
        if args.again or not known.get(name, {}).get("fine"):
            try:
                known[name] = asdict(measure())
            except (RuntimeError, subprocess.SubprocessError) as why:
                known[name] = asdict(Came(False, str(why)[-600:], 0.0))
            args.work.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
        came = Came(**known[name])
        right += came.fine
        rows.append(f"| {name} | {'' if came.fine else '**wrong** '}{came.said[:260]} | {came.seconds:.0f} |".replace("\n", " "))  # fmt: skip
        print("ok " if came.fine else "BAD", name, came.said, f"{came.seconds:.0f} s", flush=True)
    if args.write:
        body = f"`python benchmarks/diff_scripts.py --mirror DIR --site DIR --write`, {machine()}. Data is made up, loops are untouched, histories are the repositories' own.\n\n"
        body += f"**{right} of {len(rows)}** as expected.\n\n| pair or search | verdict and first difference | seconds |\n|---|---|---:|\n"
        write_section("diff and bisect, public scripts", body + "\n".join(rows))
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

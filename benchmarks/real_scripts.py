"""Public training scripts, watched: the same bits as bare, every finding judged by hand, and broken in one way each.

    python benchmarks/real_scripts.py --mirror DIR [--site DIR] [NAME ...]      # healthy and broken
    python benchmarks/real_scripts.py --mirror DIR --missing                    # continue with it: rows are kept
    python benchmarks/real_scripts.py --mirror DIR --cost 5                     # CPU time in turns, on a quiet machine
    python benchmarks/real_scripts.py --mirror DIR --write                      # and into RESULTS.md

`--mirror` holds git directories `owner+name/repo`; `--site` is a folder with packages that the scripts need and we do not
(torchvision, gymnasium, torch_geometric, matplotlib, tyro, scikit-learn), made by `pip install --no-deps --target`. Nothing fetched
is in this repository: public_scripts/scripts.py names the files, says which few words of them are replaced (data, sizes, devices; loops stay as
they are), and what each finding is worth. Data is made up, in the format that the script reads (public_scripts/data.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from public_scripts.breaks import BREAKS
from public_scripts.data import WRITERS
from public_scripts.entry import Break, Real, Swap
from public_scripts.scripts import SCRIPTS
from results import machine, write_section

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
_TORCH = re.compile(
    r"^(import torch|from torch[\w.]* import [^(\n]*[^(\\\n]|import torch\.[\w.]+ as \w+) *$", re.M
)
SECONDS = 1800
Shown = tuple[str, list[str]]  # a row of the table, and what to look at


class Unusable(Exception):
    """A script is not as its entry says."""


@dataclass
class Ran:
    """One run of a script."""

    status: int
    output: str
    seconds: float
    cpu: float
    bits: dict[str, object] = field(default_factory=dict)
    findings: list[dict[str, object]] = field(default_factory=list)
    said: str = ""  # the line at the end


class Stage:
    """Where scripts are laid out and run."""

    def __init__(self, mirror: Path, site: Path | None, work: Path) -> None:
        self.mirror, self.site, self.work = mirror, site, work

    def lay(
        self, real: Real, name: str, swaps: tuple[Swap, ...] = (), *, bits: bool = True
    ) -> Path:
        """A fresh copy of a script, its neighbours and its data; the folder that stands for the repository.

        `bits`: with a line that fixes its seeds and notes its parameters.
        """
        ready = self.work / "ready" / real.name
        if not ready.exists():
            self._fetch(real, ready)
            for writer in real.data:
                WRITERS[writer](ready / Path(real.script).parent)
        folder = self.work / name / real.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ready, folder)
        for swap in (*real.swaps, *swaps):
            _swap(folder / (swap.path or real.script), swap)
        if bits:
            self._note_bits(real, folder / real.script)
        return folder

    def _note_bits(self, real: Real, script: Path) -> None:
        text = script.read_text(encoding="utf-8")
        found = _TORCH.search(text)
        at = text.index("\n", found.start()) if found else None
        if real.after:
            at = text.index("\n", text.index(real.after))
        if at is None:
            raise Unusable(f"{real.name}: no line imports torch")
        script.write_text(f"{text[:at]}; import _bits{text[at:]}", encoding="utf-8")

    def _fetch(self, real: Real, into: Path) -> None:
        git = ["git", "-C", str(self.mirror / real.repo.replace("/", "+") / "repo")]
        listed = subprocess.run(
            [*git, "ls-tree", "-r", "--name-only", "HEAD", *real.take],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        for path in listed:
            if Path(path).suffix not in (
                ".py",
                ".ipynb",
                ".txt",
                ".json",
                ".yaml",
                ".yml",
                ".toml",
            ):
                continue
            got = subprocess.run([*git, "show", f"HEAD:{path}"], capture_output=True)
            if got.returncode == 0:
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                (into / path).write_bytes(got.stdout)
            if path.endswith(".ipynb"):
                (into / path).with_suffix(".py").write_text(_program(got.stdout), encoding="utf-8")
        if not (into / real.script).exists():
            raise Unusable(f"{real.name}: {real.repo} has no {real.script}")

    def environment(self, real: Real, folder: Path) -> dict[str, str]:
        """With what the script is run: made-up data sets and the packages that it needs are found first."""
        paths = [HERE / "public_scripts" / "stage", SOURCE, *(folder / p for p in real.path)]
        paths += [HERE / "public_scripts" / "stubs" / s for s in real.stubs]
        paths += [self.site] if self.site else []
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.work / "hf"),
            "CUDA_VISIBLE_DEVICES": "",
            "WANDB_MODE": "disabled",
            "REAL_BITS": "",
        }

    def run(self, real: Real, folder: Path, out: Path | None, *, bits: bool = True) -> Ran:
        script = folder / real.script
        python = [sys.executable] if out is None else [
            sys.executable, "-m", "fallline", "run", "--out", str(out)
        ]  # fmt: skip
        record = folder / "_bits.json"
        environment = self.environment(real, folder)
        environment["REAL_BITS"] = str(record) if bits else ""
        if out is not None:
            shutil.rmtree(out, ignore_errors=True)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        try:
            what = ["-m", real.module] if real.module else [script.name]
            done = subprocess.run(
                [*python, *what, *shlex.split(real.args)],
                cwd=folder if real.module else script.parent, env=environment, capture_output=True, text=True, timeout=SECONDS,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            status, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            status, output, errors = 124, "", str(error.stderr or b"", "utf-8", "replace") if isinstance(error.stderr, bytes) else ""  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = Ran(
            status,
            output + errors,
            time.perf_counter() - start,
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        )
        (folder / "_output.txt").write_text(ran.output, encoding="utf-8")
        if record.exists():
            ran.bits = json.loads(record.read_text())
        if out is not None and (out / "findings.json").exists():
            ran.findings = json.loads((out / "findings.json").read_text())
        ours = [line for line in errors.splitlines() if line.startswith("fallline:")]
        ran.said = ours[-1] if ours else ""
        return ran


def _program(notebook: bytes) -> str:
    """The code of a notebook, cell after cell, without the lines that only a notebook understands."""
    cells = [c["source"] for c in json.loads(notebook)["cells"] if c["cell_type"] == "code"]
    lines = "\n\n".join("".join(cell) for cell in cells).splitlines()
    return "\n".join(f"# {line}" if line.startswith(("%", "!")) else line for line in lines) + "\n"


def _swap(path: Path, swap: Swap) -> None:
    text = path.read_text(encoding="utf-8")
    if swap.old not in text:
        raise Unusable(f"{path}: does not hold {swap.old!r}")
    path.write_text(text.replace(swap.old, swap.new), encoding="utf-8")


def healthy(stage: Stage, real: Real) -> Shown:
    """The row of a script as it is, and what is wrong with it."""
    bare = stage.run(real, stage.lay(real, "bare"), None)
    watched = stage.run(real, stage.lay(real, "watched"), stage.work / "runs" / real.name)
    wrong = []
    if bare.status or watched.status != bare.status:
        wrong.append(f"exit {bare.status} bare, {watched.status} watched: {watched.output[-600:]}")
    if "not watched" in watched.output:
        wrong.append(watched.said)
    same = bare.bits == watched.bits and bool(bare.bits.get("steps") or bare.bits.get("state"))
    if not same:
        wrong.append(f"other bits: {bare.bits} {watched.bits}")
    cells = []
    for finding in watched.findings:
        if finding["severity"] == "info":
            continue
        code, line = str(finding["code"]), finding["line"]
        verdict = real.judged.get(code)
        if verdict is None:
            wrong.append(
                f"not judged: {code} {Path(str(finding['path'])).name}:{line} {finding['message']}"
            )
        cells.append(f"{code} :{line} {verdict or '?'}")
    missing = [c for c in real.judged if c not in {f["code"] for f in watched.findings}]
    if missing:
        wrong.append(f"judged, and not found any more: {missing}")
    told = "<br>".join(cells) or "nothing"
    row = f"| {real.repo} | {real.script} | {watched.bits.get('steps') or 'by hand'} | {'yes' if same else '**no**'} | {told} |"
    print(f"   {bare.seconds:.0f} s bare, {watched.seconds:.0f} s watched; {watched.said}")
    return row, wrong


def broken(stage: Stage, real: Real, fault: Break) -> Shown:
    """The row of one break, and what is wrong with it."""
    folder = stage.lay(real, "broken", fault.swaps)
    path = folder / (fault.path or fault.swaps[0].path or real.script)
    lines = path.read_text(encoding="utf-8").splitlines()
    at = [n for n, line in enumerate(lines, 1) if fault.at in line]
    if len(at) != 1:
        raise Unusable(f"{real.name}: {fault.at!r} is in {len(at)} lines")
    ran = stage.run(real, folder, stage.work / "runs" / f"{real.name}-broken")
    told = [
        (str(f["code"]), Path(str(f["path"])).name, f["line"])
        for f in ran.findings
        if (f["severity"] != "info" or f["code"] in fault.codes)
        and str(f["code"]) not in real.judged
    ]
    notes = {str(f["code"]) for f in ran.findings if f["severity"] == "info"}
    hit = [t for t in told if t[0] in fault.codes]
    exact = [t for t in hit if t[1] == path.name and t[2] == at[0]]
    others = sorted({f"{c}:{line}" for c, _, line in told if c not in fault.codes})
    verdict = (
        exact[0][0] + " (a note)" * (exact[0][0] in notes)
        if exact
        else f"{hit[0][0]}, line {hit[0][2]} not {at[0]}"
        if hit
        else "**missed**"
    )
    row = f"| {real.script} | {fault.what} | {verdict} | {', '.join(others)} |"
    wrong = (
        []
        if exact
        else [
            f"{fault.what}: expected {fault.codes} at {at[0]}, told {told}; {ran.said}; {ran.output[-300:] if ran.status else ''}"
        ]
    )
    return row, wrong


def cost(stage: Stage, real: Real, turns: int) -> str:
    """CPU time of the whole process, start and end included, watched against bare: in turns, bare first and last."""
    bare = [_cpu(stage, real, False)]
    watched = []
    for _ in range(turns):
        watched.append(_cpu(stage, real, True))
        bare.append(_cpu(stage, real, False))
    once = statistics.fmean(bare)
    more = statistics.fmean(watched) - once
    return (
        f"| {real.repo} | {real.script} | {once:.1f} | {more:+.2f} | {1 + more / once:.2f} | "
        f"{max(bare) / min(bare):.2f} |"
    )


def _cpu(stage: Stage, real: Real, watched: bool) -> float:
    folder = stage.lay(real, "watched" if watched else "bare")
    ran = stage.run(real, folder, stage.work / "runs" / real.name if watched else None, bits=False)
    if ran.status:
        raise Unusable(f"{real.name}: exit {ran.status}: {ran.output[-300:]}")
    return ran.cpu


class Kept:
    """The rows of earlier calls are part of the table: all scripts together take long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self, real: Real) -> dict[str, dict[str, object]]:
        """Of a script as it is, under "", and of its breaks."""
        path = self._folder / f"{real.name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def keep(self, real: Real, what: str, row: str, fine: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = self.rows(real) | {what: {"row": row, "fine": fine, "code": _commit()}}
        (self._folder / f"{real.name}.json").write_text(json.dumps(rows, indent=1))

    def table(self, chosen: list[Real], is_broken: bool) -> list[str]:
        return [
            str(kept["row"])
            for real in chosen
            for what, kept in self.rows(real).items()
            if bool(what) == is_broken
        ]

    def section(self, chosen: list[Real], good: list[str], bad: list[str]) -> str:
        """Both tables below their heads, and what they come to."""
        runs = {real.name: self.rows(real) for real in chosen}
        whole = [rows[""] for rows in runs.values() if "" in rows]
        broken = [kept for rows in runs.values() for what, kept in rows.items() if what]
        listed = sum(len(BREAKS.get(real.name, ())) for real in chosen)
        codes = sorted({str(kept["code"]) for kept in (*whole, *broken)})
        quiet = [
            n
            for n, rows in runs.items()
            if str(rows.get("", {}).get("row")).endswith("| nothing |")
        ]
        return "\n".join(
            (
                f"`python benchmarks/real_scripts.py --mirror DIR --site DIR`, {machine()}, one thread. Data is made up, loops are untouched. "
                f"The rows were kept from runs at these commits: {', '.join(codes)}.",
                "",
                f"**{len(whole)} of {len(chosen)}** scripts were run, {sum(' yes |' in str(k['row']) for k in whole)} of them with the same bits as bare. "
                f"**{sum(bool(k['fine']) for k in broken)} of {len(broken)}** mistakes were found on their line, {sum('(a note)' in str(k['row']) for k in broken)} of them as a note; "
                f"{listed} are listed in public_scripts/breaks.py.",
                "",
                *good,
                *(r for r in self.table(chosen, False) if not r.endswith("| nothing |")),
                "",
                f"The others have no error and no warning: {', '.join(quiet)}.",
                "",
                "Broken in one way each:",
                "",
                *bad,
                *self.table(chosen, True),
            )
        )


def _commit() -> str:
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def _steps(stage: Stage, real: Real, only: str | None) -> list[tuple[str, Callable[[], Shown]]]:
    """What is run of a script: as it is, under "", and each break, under its name."""
    steps: list[tuple[str, Callable[[], Shown]]] = []
    if only != "broken":
        steps.append(("", partial(healthy, stage, real)))
    if only != "healthy":
        steps += [(b.what, partial(broken, stage, real, b)) for b in BREAKS.get(real.name, ())]
    return steps


def _costs(stage: Stage, chosen: list[Real], turns: int, write: bool) -> None:
    rows, left_out = [], []
    for real in chosen:
        try:
            rows.append(cost(stage, real, turns))
        except (Unusable, subprocess.CalledProcessError) as error:
            left_out.append(real.name)
            print(f"{real.name}: {error}", flush=True)
            continue
        print(rows[-1], flush=True)
    if write:
        load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
        head = [
            f"`python benchmarks/real_scripts.py --mirror DIR --site DIR --cost {turns}`, {machine()}; the load at the end was {load}.",
            f"CPU seconds of whole processes, start and end included, bare and watched in turns. Not run: {', '.join(left_out) or 'none'}.",
            "",
            "| repository | script | bare, CPU s | watched, CPU s more | CPU x | bare, longest over shortest |",
            "|---|---|---|---|---|---|",
        ]
        write_section("real scripts, cost", "\n".join([*head, *rows]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="scripts; all by default")
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/real_scripts"))
    parser.add_argument(
        "--only",
        choices=("healthy", "broken", "kept"),
        help="kept: run nothing, show the rows of earlier calls",
    )
    parser.add_argument(
        "--missing", action="store_true", help="only what has no row yet, or one to look at"
    )
    parser.add_argument("--cost", type=int, metavar="TURNS", help="measure CPU time instead")
    parser.add_argument(
        "--write", action="store_true", help="put the result into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    stage = Stage(args.mirror, args.site, args.work)
    chosen = [s for s in SCRIPTS if not args.names or s.name in args.names]
    if args.cost:
        _costs(stage, chosen, args.cost, args.write)
        return 0
    good = [
        "| repository | script | updates | same bits | errors and warnings, judged |",
        "|---|---|---|---|---|",
    ]
    bad = ["| script | broken so | found, on the line | also said |", "|---|---|---|---|"]
    failures, kept = 0, Kept(stage.work / "rows")
    for real in chosen:
        if args.only == "kept":
            break
        known = kept.rows(real)
        for what, step in _steps(stage, real, args.only):
            if args.missing and known.get(what, {}).get("fine"):
                continue
            try:
                row, wrong = step()
            except Unusable as error:
                failures += 1
                print(f"{real.name}:\n   !! {error}", flush=True)
                continue
            (bad if what else good).append(row)
            kept.keep(real, what, row, not wrong)
            failures += bool(wrong)
            print(row, *(f"   !! {w}" for w in wrong), sep="\n", flush=True)
    print(f"{len(good) - 2} scripts, {len(bad) - 2} broken, {failures} with something to look at")
    if args.write:
        write_section("real scripts", kept.section(chosen, good[:2], bad[:2]))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

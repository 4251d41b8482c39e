"""Public repositories and mutants of their files: does the reader crash, and how long does a file take?

    python benchmarks/crashes.py --mirror FOLDER | --trees FOLDER [--jobs 16] [--repositories 200] [--mutants 25] [--only TEXT] [--keep OUT.jsonl] [--write]

`--mirror` holds git directories as OWNER+NAME, `--trees` their files; `--repositories` of them are drawn with `--seed`, those with the fewest files first.
The newest tree of each is read as a whole, as `fallline check` does, in a process of its own. Then `--mutants` times a file that
trains is changed in one place (a statement deleted, doubled, swapped with its neighbour, wrapped in a function, a name
changed) and read again. Nothing is run. A crash is a rule or a reader that raised; `fallline check` would end with status 2.
With `--keep`, a run that was stopped continues where it was. `--write` writes what the file of `--keep` holds, or this run.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from history import extract

from fallline.rules import all_rules
from fallline.syntax import Project
from fallline.verdict.project import read_paths
from fallline.verdict.reading import Reading, read_data

TRAINS = (b".backward(", b"optimizer", b"training_step")
SLOW, LARGE = 10.0, 1024  # seconds of one file, megabytes of a whole repository


def main() -> int:
    args = _arguments()
    results = _kept(args.keep)
    known = {r["repository"] for r in results}
    found = _repositories(args.mirror or args.trees, args.only, args.repositories, args.seed)
    left = [git for git in found if _name(git) not in known]
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda git: _in_process(git, args.mutants, args.seed), left):
            results.append(result)
            print(_line(result), flush=True)
            if args.keep is not None:
                with args.keep.open("a") as out:
                    out.write(json.dumps(result) + "\n")
    print("\n" + summary(results))
    if args.write:
        from results import machine, write_section

        command = f"`python benchmarks/crashes.py --mirror FOLDER --mutants {args.mutants}`"
        write_section("Crashes", f"{command}, {machine()}\n\n{summary(results)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--mirror", type=Path, help="git directories, OWNER+NAME")
    where.add_argument("--trees", type=Path, help="their files, OWNER+NAME: no git needed")
    parser.add_argument("--jobs", type=int, default=1, help="repositories at a time")
    parser.add_argument("--repositories", type=int, default=200, help="how many are drawn")
    parser.add_argument("--mutants", type=int, default=25, help="of one repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only repositories whose name contains this")
    parser.add_argument("--keep", type=Path, help="one line for each repository; read again at the start")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write the summary into RESULTS.md")
    return parser.parse_args()


def _kept(keep: Path | None) -> list[dict[str, Any]]:
    if keep is None or not keep.exists():
        return []
    return [json.loads(line) for line in keep.read_text().splitlines()]


def _repositories(mirror: Path, only: str, most: int, seed: int) -> list[Path]:
    """Those to read, the one with the fewest files first: a run that is stopped has read many."""
    found = []
    for folder in sorted(mirror.iterdir()):
        git = folder / "repo"
        if only in folder.name and git.is_dir():
            found.append(git / ".git" if (git / ".git").is_dir() else git)
        elif only in folder.name and folder.is_dir():
            found.append(folder)
    drawn = random.Random(seed).sample(found, min(most, len(found)))
    return sorted(drawn, key=_size)


def _size(git: Path) -> int:
    """How many Python files it has."""
    if not _is_git(git):
        return sum(1 for _ in git.rglob("*.py"))
    command = ["git", "-C", str(git), "ls-tree", "-r", "--name-only", "HEAD"]
    return subprocess.run(command, capture_output=True, check=True).stdout.count(b".py\n")


def _is_git(folder: Path) -> bool:
    return (folder / "objects").is_dir() and (folder / "HEAD").exists()


def _name(git: Path) -> str:
    return next(p for p in git.parts if "+" in p).replace("+", "/")


def _in_process(git: Path, mutants: int, seed: int) -> dict[str, Any]:
    """One repository, in a process of its own: its memory is its own, and if it dies, only it does."""
    made = Path(tempfile.mkdtemp(prefix="crashes-"))
    folder = made if _is_git(git) else git
    fork = multiprocessing.get_context("fork")  # the rules are imported already
    ours, its = fork.Pipe(duplex=False)
    try:
        if folder is made:
            extract(git, "HEAD", folder)
        child = fork.Process(target=_read_one, args=(folder, mutants, seed, its))
        child.start()
        its.close()
        try:
            said: dict[str, Any] = ours.recv()
        except EOFError:
            said = {"died": f"exit status {child.exitcode}"}
        child.join()
    finally:
        shutil.rmtree(made)
    return {"repository": _name(git), **said}


# -- in the process of one repository --------------------------------------------------------------------------


def _read_one(folder: Path, mutants: int, seed: int, out: Connection) -> None:
    try:
        out.send(_measured(folder, mutants, seed))
    except BaseException:
        out.send({"died": traceback.format_exc()[-2000:]})


def _measured(folder: Path, mutants: int, seed: int) -> dict[str, Any]:
    files = sorted(str(p) for p in folder.rglob("*") if p.suffix in {".py", ".ipynb"})
    clock = _Clock()
    started = time.process_time()
    readings = read_paths(files, roots=[str(folder)], on_file=clock)
    whole = time.process_time() - started
    crashes = [f for r in readings for f in r.failures]
    changed = 0
    project = Project([str(folder)])  # what the changed files import is parsed once
    for path, text in _mutants(files, random.Random(seed), mutants):
        changed += 1
        begun = time.process_time()
        try:
            crashes += read_data(path, text.encode(), project, all_rules()).failures
        except Exception:
            crashes.append(f"{path}: {traceback.format_exc()[-600:]}")
        clock.add(path, time.process_time() - begun)
    return {
        "files": len(files),
        "mutants": changed,
        "crashes": [str(c)[-800:] for c in crashes],
        "seconds": round(whole, 1),
        "slowest": round(clock.slowest, 2),
        "slowest_file": clock.path.removeprefix(str(folder)),
        "megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


class _Clock:
    """How long each file took: the time between two readings."""

    def __init__(self) -> None:
        self.slowest, self.path = 0.0, ""
        self._last = time.process_time()

    def __call__(self, reading: Reading) -> None:
        now = time.process_time()
        self.add(reading.path, now - self._last)
        self._last = now

    def add(self, path: str, seconds: float) -> None:
        if seconds > self.slowest:
            self.slowest, self.path = seconds, path


def _mutants(files: list[str], draw: random.Random, most: int) -> Iterator[tuple[str, str]]:
    trains = [f for f in files if f.endswith(".py") and _trains(f)]
    for _ in range(most if trains else 0):
        path = draw.choice(trains)
        try:
            tree = ast.parse(Path(path).read_text(encoding="utf-8"))
            draw.choice(CHANGES)(tree, draw)
            yield path, ast.unparse(ast.fix_missing_locations(tree))
        except (ValueError, RecursionError, IndexError):  # IndexError: nothing to change in it
            continue


def _trains(path: str) -> bool:
    data = Path(path).read_bytes()
    try:
        return any(t in data for t in TRAINS) and bool(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError):
        return False


def _block(tree: ast.Module, draw: random.Random) -> list[ast.stmt]:
    """Some block of statements, those of functions that train rather than others."""
    blocks = [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list) and block
    ]
    trains = [b for b in blocks if any("backward" in ast.dump(s) for s in b)]
    return draw.choice(trains if trains and draw.random() < 0.7 else blocks)


def _delete(tree: ast.Module, draw: random.Random) -> None:
    block = _block(tree, draw)
    block[draw.randrange(len(block))] = ast.Pass()


def _double(tree: ast.Module, draw: random.Random) -> None:
    block = _block(tree, draw)
    index = draw.randrange(len(block))
    block.insert(index, block[index])


def _swap(tree: ast.Module, draw: random.Random) -> None:
    block = _block(tree, draw)
    if len(block) > 1:
        index = draw.randrange(len(block) - 1)
        block[index], block[index + 1] = block[index + 1], block[index]


def _wrap(tree: ast.Module, draw: random.Random) -> None:
    block = _block(tree, draw)
    index = draw.randrange(len(block))
    inner = ast.parse("def wrapped():\n    pass\nwrapped()").body
    function = inner[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = [block[index]]
    block[index : index + 1] = inner


def _rename(tree: ast.Module, draw: random.Random) -> None:
    names = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)})
    if len(names) < 2:
        return
    old, new = draw.sample(names, 2)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new


CHANGES: tuple[Callable[[ast.Module, random.Random], None], ...] = (
    _delete,
    _double,
    _swap,
    _wrap,
    _rename,
)


def _line(result: dict[str, Any]) -> str:
    if "died" in result:
        return f"DIED {result['repository']}\n{result['died']}"
    said = "".join(f"\n  {c}" for c in result["crashes"])
    return (
        f"{result['repository']}: {result['files']} files in {result['seconds']} s, slowest {result['slowest']} s "
        f"({result['slowest_file']}), {result['megabytes']} MB, {result['mutants']} mutants, {len(result['crashes'])} crashes{said}"
    )


def summary(results: list[dict[str, Any]]) -> str:
    read = [r for r in results if "died" not in r]
    crashes, files, mutants = len([c for r in read for c in r["crashes"]]), 0, 0
    for result in read:
        files += result["files"]
        mutants += result["mutants"]
    slowest = max(read, key=lambda r: float(r["slowest"]))
    largest = max(read, key=lambda r: int(r["megabytes"]))
    return (
        f"{len(read)} public repositories ({files:,} files) and {mutants:,} mutants of files that train (a statement deleted, doubled, "
        f"swapped, wrapped in a function, a name changed): **{crashes} crashes**, {len(results) - len(read)} processes that died. "
        f"{sum(r['slowest'] > SLOW for r in read)} repositories have a file that takes more than {SLOW:.0f} s of processor time, "
        f"{sum(r['megabytes'] > LARGE for r in read)} take more than 1 GB. The slowest file took {slowest['slowest']} s "
        f"(`{slowest['repository']}{slowest['slowest_file']}`), the largest process {largest['megabytes']} MB ({largest['repository']})."
    )


if __name__ == "__main__":
    sys.exit(main())

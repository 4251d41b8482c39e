"""Public repositories and mutants of their files: does the reader crash, and how long does a file take?

    python benchmarks/crashes.py --mirror FOLDER [--mutants 5000] [--only TEXT] [--keep OUT.jsonl] [--write]

`--mirror` holds git directories as OWNER+NAME. The newest tree of each is read as a whole, as `fallline check` does, in a
process of its own. Then files that train are changed in one place each (a statement deleted, doubled, swapped with its
neighbour, wrapped in a function, a name changed) and read again. Nothing is run. A crash is a rule or a reader that raised;
`fallline check` would end with status 2.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from history import extract

from fallline.rules import all_rules
from fallline.syntax import Project
from fallline.verdict.project import read_paths
from fallline.verdict.reading import Reading, read_data

PER_REPOSITORY = 60  # mutants of one repository at most
TRAINS = (b".backward(", b"optimizer", b"training_step")


def main() -> int:
    args = _arguments()
    if args.read is not None:
        return _read_one(args.read, args.mutants, args.seed)
    results = []
    for git in _repositories(args.mirror, args.only):
        results.append(_in_process(git, args))
        print(_line(results[-1]), flush=True)
    if args.keep is not None:
        args.keep.write_text("".join(json.dumps(r) + "\n" for r in results))
    print("\n" + summary(results))
    if args.write:
        from results import machine, write_section

        write_section("Crashes", f"{machine()}\n\n{summary(results)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mirror", type=Path, help="git directories, OWNER+NAME")
    parser.add_argument("--mutants", type=int, default=PER_REPOSITORY, help="of one repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only repositories whose name contains this")
    parser.add_argument("--keep", type=Path, help="write what was measured for each repository")
    parser.add_argument("--write", action="store_true", help="write the summary into RESULTS.md")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)  # one extracted tree
    return parser.parse_args()


def _repositories(mirror: Path, only: str) -> Iterator[Path]:
    for folder in sorted(mirror.iterdir()):
        if only in folder.name and (folder / "repo").is_dir():
            git = folder / "repo"
            yield git / ".git" if (git / ".git").is_dir() else git


def _in_process(git: Path, args: argparse.Namespace) -> dict[str, object]:
    """One repository, in a process of its own: its memory is its own, and if it dies, only it does."""
    name = next(p for p in git.parts if "+" in p).replace("+", "/")
    folder = Path(tempfile.mkdtemp(prefix="crashes-"))
    try:
        extract(git, "HEAD", folder)
        command = [sys.executable, __file__, "--read", str(folder)]
        options = ["--mutants", str(args.mutants), "--seed", str(args.seed)]
        done = subprocess.run([*command, *options], capture_output=True, check=False)
    finally:
        shutil.rmtree(folder)
    if done.returncode:
        return {"repository": name, "died": done.stderr.decode(errors="replace")[-2000:]}
    return {"repository": name, **json.loads(done.stdout.splitlines()[-1])}


# -- in the process of one repository --------------------------------------------------------------------------


def _read_one(folder: Path, mutants: int, seed: int) -> int:
    files = sorted(str(p) for p in folder.rglob("*") if p.suffix in {".py", ".ipynb"})
    clock = _Clock()
    started = time.process_time()
    readings = read_paths(files, roots=[str(folder)], on_file=clock)
    whole = time.process_time() - started
    crashes = [f for r in readings for f in r.failures]
    draw = random.Random(seed)
    changed = 0
    for path, text in _mutants(files, draw, mutants):
        changed += 1
        begun = time.process_time()
        try:
            reading = read_data(path, text.encode(), Project([str(folder)]), all_rules())
            crashes += list(reading.failures)
        except Exception as error:
            crashes.append(f"{path}: {error!r}")
        clock.add(path, time.process_time() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "files": len(files),
                "mutants": changed,
                "crashes": [str(c)[:600] for c in crashes],
                "seconds": round(whole, 1),
                "slowest": round(clock.slowest, 2),
                "slowest_file": clock.path.removeprefix(str(folder)),
                "megabytes": round(peak),
            }
        )
    )
    return 0


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
    python = [f for f in files if f.endswith(".py")]
    trains = [f for f in python if any(t in Path(f).read_bytes() for t in TRAINS)]
    for _ in range(most if trains else 0):
        path = draw.choice(trains)
        try:
            text = Path(path).read_text(encoding="utf-8")
            tree = ast.parse(text)
            draw.choice(CHANGES)(tree, draw)
            yield path, ast.unparse(ast.fix_missing_locations(tree))
        except (SyntaxError, ValueError, RecursionError):
            continue


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


def _line(result: dict[str, object]) -> str:
    if "died" in result:
        return f"DIED {result['repository']}\n{result['died']}"
    crashes = result["crashes"]
    assert isinstance(crashes, list)
    said = "".join(f"\n  {c}" for c in crashes)
    return (
        f"{result['repository']}: {result['files']} files in {result['seconds']} s, slowest {result['slowest']} s "
        f"({result['slowest_file']}), {result['megabytes']} MB, {result['mutants']} mutants, {len(crashes)} crashes{said}"
    )


def summary(results: list[dict[str, object]]) -> str:
    read = [r for r in results if "died" not in r]
    crashes = sum(len(r["crashes"]) for r in read if isinstance(r["crashes"], list))
    files = sum(int(str(r["files"])) for r in read)
    mutants = sum(int(str(r["mutants"])) for r in read)
    slowest = max(read, key=lambda r: float(str(r["slowest"])))
    largest = max(read, key=lambda r: int(str(r["megabytes"])))
    return (
        f"{len(read)} public repositories ({files:,} files) and {mutants:,} mutants of files that train: {crashes} crashes, "
        f"{len(results) - len(read)} processes that died. The slowest file took {slowest['slowest']} s of processor time "
        f"(`{slowest['repository']}{slowest['slowest_file']}`), the largest process {largest['megabytes']} MB ({largest['repository']})."
    )


if __name__ == "__main__":
    sys.exit(main())

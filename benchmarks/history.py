"""Real repairs in public repositories: is the mistake found before the repair, and is the reader silent after it?

    python benchmarks/history.py ROWS.jsonl --mirror FOLDER [--source SRC] [--near] [--keep OUT.jsonl] [--only TEXT] [--jobs N] [--write]
    python benchmarks/history.py ROWS.jsonl --mirror FOLDER --extract TREES     write the trees of all rows to TREES/OWNER+NAME/COMMIT
    python benchmarks/history.py ROWS.jsonl --trees TREES [...]                 read those: no git and no mirror needed

A row names a repository, the commit before and after, a file, a line and a code. Both trees are read as a whole with
`fallline check` and thrown away afterwards (with `--near`, only the row's file and the files that import it are read, and what
they import); nothing in them is run. A row is *found* when its code is reported in its file
within six lines of its line, and *silent* when it is not reported after the repair where it was before (the same file, the
same code, and either no finding at all or none near the place that was repaired). `--mirror` holds the git directories as
OWNER+NAME. `--source` measures another checkout of fallline. `--static` keeps to the rows that are visible in source and have a code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

NEAR = 6
MOST_NEAR = 12  # files that import the row's file
READ = (".py", ".ipynb", ".toml", ".cfg", ".ini")
CHECK = ["-m", "fallline", "check", "--no-cache", "--jobs", "1", "--output-format", "json"]


@dataclass(frozen=True)
class Row:
    """One repair."""

    repo: str
    before: str
    after: str
    file: str
    line: int
    code: str
    what: str
    static: bool
    runtime: bool


@dataclass(frozen=True)
class Judged:
    """What the reader said of one repair. `lines`: where it reported the code in that file before and after."""

    row: Row
    found: bool
    silent: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    others: tuple[str, ...]  # other codes near the line, before


def main() -> int:
    args = _arguments()
    rows = [row_of(json.loads(line)) for line in args.rows.read_text().splitlines() if line.strip()]
    rows = [r for r in rows if args.only in f"{r.repo} {r.file} {r.code}"]
    if args.static:
        rows = [r for r in rows if r.static and r.code != "NEW"]
    if args.extract is not None:
        return extract_all(rows, args.mirror, args.extract)
    judged = []
    rows.sort(key=lambda r: (r.repo, r.before))
    reader = Reader(args.mirror, args.trees, args.source, args.near)
    with ThreadPoolExecutor(args.jobs) as pool:  # each one waits for a process
        for one in pool.map(reader.judge, rows):
            judged.append(one)
            print(_line(one), flush=True)
    if args.keep is not None:
        args.keep.write_text("".join(json.dumps(asdict(j)) + "\n" for j in judged))
    print("\n" + table(judged))
    if args.write:
        from results import machine, write_section

        write_section("Repairs in public histories", f"{machine()}\n\n{table(judged)}")
    return 0


def row_of(entry: dict[str, Any]) -> Row:
    """A row of the file; keys that only describe it further are passed over."""
    return Row(**{f.name: entry[f.name] for f in fields(Row)})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--mirror", type=Path, help="git directories, OWNER+NAME")
    where.add_argument("--trees", type=Path, help="trees that --extract wrote")
    parser.add_argument("--extract", type=Path, help="only write the trees of all rows here")
    parser.add_argument("--jobs", type=int, default=1, help="rows read at the same time")
    parser.add_argument("--static", action="store_true", help="only rows that source shows")
    parser.add_argument("--source", type=Path, help="the src folder of another fallline")
    parser.add_argument("--near", action="store_true", help="read only what is near the row's file")
    parser.add_argument("--keep", type=Path, help="write what was found for each row here")
    parser.add_argument(
        "--only", default="", help="only rows whose repository, file or code contains this"
    )
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    return parser.parse_args()


@dataclass
class Reader:
    """Reads trees, from git directories or from folders; several rows of one commit read it once."""

    mirror: Path | None
    trees: Path | None
    source: Path | None
    near: bool = False

    def __post_init__(self) -> None:
        self._read: dict[tuple[str, str, str], list[dict[str, Any]]] = {}

    def judge(self, row: Row) -> Judged:
        """Read both trees and compare them at the place that was repaired."""
        old, new = (self.findings(row, commit) for commit in (row.before, row.after))
        before, after = _lines(old, row), _lines(new, row)
        found = any(abs(line - row.line) <= NEAR for line in before)
        silent = len(after) < len(before) if found else not after
        others = {
            f["code"] for f in old if f["path"] == row.file and abs(f["line"] - row.line) <= NEAR
        }
        return Judged(row, found, silent, before, after, tuple(sorted(others - {row.code})))

    def findings(self, row: Row, commit: str) -> list[dict[str, Any]]:
        """What `fallline check` reports on one tree, or near one file of it."""
        about = row.file if self.near else ""
        key = (row.repo, commit, about)
        if key not in self._read:
            self._read[key] = self._tree(row.repo, commit, about)
        return self._read[key]

    def _tree(self, repo: str, commit: str, about: str) -> list[dict[str, Any]]:
        if self.trees is not None:
            return _check(tree_of(self.trees, repo, commit), self.source, about)
        assert self.mirror is not None
        folder = Path(tempfile.mkdtemp(prefix="history-"))
        try:
            extract(git_directory(self.mirror, repo), commit, folder)
            return _check(folder, self.source, about)
        finally:
            shutil.rmtree(folder)


def tree_of(trees: Path, repo: str, commit: str) -> Path:
    return trees / repo.replace("/", "+") / commit[:12]


def extract_all(rows: Iterable[Row], mirror: Path, trees: Path) -> int:
    for repo, commit in sorted({(r.repo, c) for r in rows for c in (r.before, r.after)}):
        folder = tree_of(trees, repo, commit)
        if not folder.exists():
            folder.mkdir(parents=True)
            extract(git_directory(mirror, repo), commit, folder)
    return 0


def _lines(found: Iterable[dict[str, Any]], row: Row) -> tuple[int, ...]:
    return tuple(
        sorted(f["line"] for f in found if f["path"] == row.file and f["code"] == row.code)
    )


def git_directory(mirror: Path, repo: str) -> Path:
    folder = mirror / repo.replace("/", "+") / "repo"
    if not folder.is_dir():
        raise SystemExit(f"{repo} is not in {mirror}: put its git directory at {folder}")
    return folder / ".git" if (folder / ".git").is_dir() else folder


def near_to(folder: Path, file: str) -> list[str]:
    """A file, and those that import it by its name."""
    name = Path(file).stem if Path(file).stem != "__init__" else Path(file).parent.name
    imports = re.compile(rf"^\s*(from|import)\b.*\b{re.escape(name)}\b", re.M)
    paths = (p for p in sorted(folder.rglob("*.py")) if p != folder / file)
    others = [p for p in paths if imports.search(p.read_text(errors="replace"))]
    return [file, *(str(p.relative_to(folder)) for p in others[:MOST_NEAR])]


def _check(folder: Path, source: Path | None, about: str) -> list[dict[str, Any]]:
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    paths = near_to(folder, about) if about and (folder / about).exists() else ["."]
    done = subprocess.run(
        [sys.executable, *CHECK, *paths],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode > 1:
        print(f"{folder}: {done.stderr.decode(errors='replace')[-500:]}", file=sys.stderr)
        return []
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def extract(git: Path, commit: str, folder: Path) -> None:
    """Write the tree's Python side. A snapshot may lack large files: those are passed over."""
    wanted = list(_blobs(git, commit))
    names = "".join(f"{blob}\n" for blob, _ in wanted).encode()
    done = subprocess.run(
        ["git", "-C", str(git), "cat-file", "--batch"], input=names, capture_output=True, check=True
    )
    at = 0
    for _, path in wanted:
        end = done.stdout.index(b"\n", at)
        head = done.stdout[at:end].split()
        at = end + 1
        if head[-1] == b"missing":
            continue
        size = int(head[2])
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(done.stdout[at : at + size])
        at += size + 1


def _blobs(git: Path, commit: str) -> Iterator[tuple[str, str]]:
    tree = subprocess.run(
        ["git", "-C", str(git), "ls-tree", "-r", "-z", commit], capture_output=True, check=True
    )
    for entry in tree.stdout.decode(errors="surrogateescape").split("\0"):
        head, _, path = entry.partition("\t")
        if head.startswith("100") and path.endswith(READ):
            yield head.split()[2], path


def _line(j: Judged) -> str:
    row = j.row
    said = "found" if j.found else "MISSED"
    then = "silent" if j.silent else "STILL SAID"
    near = f" (near it: {', '.join(j.others)})" if j.others else ""
    return f"{said:6} {then:10} {row.code} {row.repo} {row.file}:{row.line}{near}"


def table(judged: list[Judged]) -> str:
    """Static rows with a code of ours: found before, silent after; then the rules that missed one."""
    from fallline.rules import rule_names

    names = rule_names()
    ours = [j for j in judged if j.row.static and j.row.code != "NEW"]
    found = sum(j.found for j in ours)
    silent = sum(j.silent for j in ours if j.found)
    lines = [
        f"{len(judged)} repairs, {len(ours)} of them visible in source and with a rule.",
        f"Found before the repair: **{found} of {len(ours)} ({100 * found / max(1, len(ours)):.0f} %)**. "
        f"Of those, silent after it: {silent} of {found} ({100 * silent / max(1, found):.0f} %).",
        "",
        "| rules with a miss | repairs | found before | missed |",
        "|---|---|---|---|",
    ]
    for code in sorted({j.row.code for j in ours if not j.found}):
        mine = [j for j in ours if j.row.code == code]
        missed = sorted(j.row.repo for j in mine if not j.found)
        lines.append(
            f"| {names.get(code, '?')} ({code}) | {len(mine)} | {len(mine) - len(missed)} | {', '.join(missed)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

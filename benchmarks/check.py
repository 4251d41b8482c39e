"""`fallline check` side by side with torchfix, flake8, pylint and ruff over the same files.

    python benchmarks/check.py [--tree FOLDER] [--sample 149] [--peers DIR] [--skip pylint,...] [--write]

The tree is transformers' source, from its wheel. The slow ones get a sample of the files that mention torch (the ones
fallline cannot pass over), and so does fallline, in the same run. One process each, caches off, CPU time and peak
memory as the kernel counts them. Then fallline alone reads a quarter, half and all of the tree, to see whether
time grows with size and nothing more.

Peers are installed into a virtual environment of their own (torchfix pins an old libcst): in --peers, or a temporary
folder that is thrown away.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import os
import subprocess
import sys
import tempfile
import time
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from results import machine, write_section

import fallline

PEERS = ("torchfix", "flake8", "pylint", "ruff")
BAR = 50
FALLLINE = [
    sys.executable,
    "-m",
    "fallline",
    "check",
    "--no-cache",
    "--jobs",
    "1",
    "--output-format",
    "concise",
]


class Cost(NamedTuple):
    seconds: float
    megabytes: float


def measure(command: list[str], environment: dict[str, str] | None = None) -> Cost:
    """CPU seconds and peak memory of one process and the children it waited for."""
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    complaints = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in range(32) or b"Traceback" in complaints:
        raise SystemExit(
            f"{command[:6]} ... failed ({process.returncode}):\n{complaints.decode(errors='replace')[-2000:]}"
        )
    cost = Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    print(
        f"  {cost.seconds:8.2f} s CPU  {cost.megabytes:6.0f} MB  {time.monotonic() - started:7.1f} s",
        flush=True,
    )
    return cost


def install_peers(folder: Path) -> Path:
    """The folder of the peers' programs."""
    programs = folder / "bin"
    if not (programs / "torchfix").exists():
        print(f"installing {', '.join(PEERS)} into {folder} ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run(
            [
                programs / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *PEERS,
            ],
            check=True,
        )
    return programs


def sources(tree: Path) -> list[str]:
    return sorted(str(path) for path in tree.rglob("*.py"))


def evenly(items: list[str], count: int) -> list[str]:
    """`count` of the items, spread over all of them."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def parse_only(files: list[str]) -> Cost:
    """What Python's own parser takes: nobody who looks at syntax can be faster in Python."""
    started = time.process_time()
    for file in files:
        ast.parse(Path(file).read_bytes())
    return Cost(time.process_time() - started, 0.0)


def side_by_side(files: list[str], programs: Path, skipped: set[str]) -> dict[str, Cost]:
    one_thread = {"RAYON_NUM_THREADS": "1"}
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "fallline": (FALLLINE, {}),
        "ruff, all its rules": (
            [str(programs / "ruff"), "check", "--isolated", "--no-cache", "--select", "ALL"],
            one_thread,
        ),
        "pylint": (
            [str(programs / "pylint"), "-j", "1", "--persistent", "n", "--rcfile", os.devnull],
            {},
        ),
        "flake8 with torchfix": ([str(programs / "flake8"), "--isolated", "-j", "1"], {}),
        "torchfix": ([str(programs / "torchfix"), "-j", "1", "--select", "ALL"], {}),
    }
    costs = {}
    for name, (command, environment) in commands.items():
        if name.split()[0].rstrip(",") not in skipped:
            print(name, flush=True)
            costs[name] = measure([*command, *files], environment)
    costs["ast.parse alone"] = parse_only(files)
    return costs


def growth(files: list[str]) -> list[tuple[int, float, Cost]]:
    """(files, megabytes of source, cost) for a quarter, half and all of the tree."""
    rows = []
    for part in (4, 2, 1):
        chosen = evenly(files, len(files) // part)
        size = sum(Path(file).stat().st_size for file in chosen) / 1e6
        print(f"fallline on {len(chosen)} files", flush=True)
        rows.append((len(chosen), size, measure([*FALLLINE, *chosen])))
    return rows


def table(costs: dict[str, Cost], files: list[str]) -> str:
    ours = costs["fallline"].seconds
    size = sum(Path(file).stat().st_size for file in files) / 1e6
    rows = [
        f"{len(files)} files that mention torch, {size:.1f} MB:",
        "",
        "| program | CPU s | times fallline | peak MB |",
        "|---|---|---|---|",
    ]
    for name, cost in sorted(costs.items(), key=lambda item: item[1].seconds):
        memory = f"{cost.megabytes:.0f}" if cost.megabytes else ""
        rows.append(f"| {name} | {cost.seconds:.2f} | {cost.seconds / ours:.2f} | {memory} |")
    return "\n".join(rows)


def growth_table(rows: list[tuple[int, float, Cost]]) -> str:
    lines = [
        "fallline alone:",
        "",
        "| files | MB of source | CPU s | CPU s per MB | peak MB |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {count} | {size:.1f} | {cost.seconds:.2f} | {cost.seconds / size:.2f} | {cost.megabytes:.0f} |"
        for count, size, cost in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="another tree than transformers")
    parser.add_argument("--sample", type=int, default=149)
    parser.add_argument("--peers", type=Path, help="keep the peers' virtual environment here")
    parser.add_argument("--skip", default="", help="peers to leave out, comma-separated")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    spec = find_spec("transformers")
    tree = args.tree or (Path(spec.origin).parent if spec and spec.origin else None)
    if tree is None:
        raise SystemExit(
            "transformers is not installed here: pip install transformers, or give --tree"
        )
    compileall.compile_dir(Path(fallline.__file__).parent, quiet=1)  # as an installed program is
    files = sources(tree)
    sample = evenly([file for file in files if b"torch" in Path(file).read_bytes()], args.sample)
    with tempfile.TemporaryDirectory() as temporary:
        costs = side_by_side(
            sample, install_peers(args.peers or Path(temporary)), set(args.skip.split(","))
        )
    sizes = growth(files)
    body = f"{table(costs, sample)}\n\n{growth_table(sizes)}"
    if "torchfix" in costs:
        ratio = costs["torchfix"].seconds / costs["fallline"].seconds
        body += f"\n\ntorchfix takes **{ratio:.0f}** times as long as fallline (bar: {BAR})."
    print(f"\n{body}")
    if args.write:
        write_section(
            "check", f"`python benchmarks/check.py`, {machine()}, tree: {tree.name}\n\n{body}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

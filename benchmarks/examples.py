"""What the example scripts come to, broken and repaired: the last number that each prints, with its default arguments.

python benchmarks/examples.py [--write]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from results import machine, write_section

HOME = Path(__file__).parent.parent / "examples"


def last_number(script: Path) -> str:
    """The line with the last number it prints, without what comes before the colon."""
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    told = [line for line in ran.stdout.splitlines() if re.search(r": .*(\d|nan)", line)]
    return told[-1].strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="put the result into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    rows = ["| script | broken | repaired |", "|---|---|---|"]
    for folder in sorted(p.parent for p in HOME.glob("*/broken.py")):
        told = [last_number(folder / f"{kind}.py") for kind in ("broken", "repaired")]
        rows.append(f"| {folder.name} | {told[0]} | {told[1]} |")
    table = "\n".join(rows)
    print(table)
    if args.write:
        where = f"{machine()}, torch {torch.__version__}, one thread"
        write_section("examples", f"`python benchmarks/examples.py`, {where}\n\n{table}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The engine on several ranks against one process: every wrapper and framework, in float64, and the table for RESULTS.md.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_matrix.py 4 8             # prints the table
    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_matrix.py 4 8 --write     # and writes it into RESULTS.md

It runs what `tests/engine/test_ranks.py` runs (gloo, on this machine) and shows what that measured. Needs accelerate and lightning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from results import machine, write_section

TESTS = Path(__file__).parent.parent / "tests" / "engine"
COLUMNS = [
    *("plain", "tokens and remainder", "clip", "NaN on one rank"),
    *("resume", "resume on half the ranks", "resume on twice the ranks"),
]


def measure(world: int) -> dict[str, dict[str, float]]:
    """The largest distance of any parameter from one process's, on any rank, for each row and column."""
    stories = f"matrix,matrix_on_half@{world // 2},matrix_on_twice"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(TESTS / "launch.py")]
        done = subprocess.run(
            [*command, "mesh_worker", stories, str(world), folder],
            env={"GLOO_SOCKET_IFNAME": "lo", **os.environ},
            check=False,
        )
        if done.returncode:
            logs = [log.read_text() for log in Path(folder).glob("rank-*.log")]
            raise SystemExit("\n".join(log[-2000:] for log in logs))
        found: dict[str, dict[str, float]] = json.loads(Path(folder, "matrix.json").read_text())
    return found


def cell(values: list[float | None]) -> str:
    shown = [f"{value:.0e}".replace("e-0", "e-") if value else "0" for value in values if value is not None]  # fmt: skip
    return " / ".join(shown) or "–"


def table(worlds: list[int], every: list[dict[str, dict[str, float]]]) -> str:
    ranks = " / ".join(map(str, worlds))
    lines = [
        f"`python benchmarks/engine_matrix.py {' '.join(map(str, worlds))}`, {machine()}, torch {torch.__version__}, gloo, {ranks} ranks",
        "",
        "The largest distance of any parameter, and of the gradient norm, from one process that sees the whole batch, in float64. A NaN on one rank: how far any "
        "parameter moved. Resume: stopped after two of six updates, in mid-epoch; on the same ranks also the same bits as without the stop.",
        "",
        f"| | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    for name in every[0]:
        cells = [cell([found[name].get(column) for found in every]) for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Refused, with what to use instead: `DDP(..., device_mesh=)` or composable `replicate` around tensor-parallel parameters, FSDP1, DeepSpeed, a "
        'communication hook or all-reduce hook that is not torch\'s own without `reduction=`, a model that is not wrapped without `reduction="none"`, and resuming in mid-epoch on a '
        "different number of ranks when the loader's order depends on that number.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", type=int, nargs="+", help="numbers of ranks")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    options = parser.parse_args()
    text = table(options.worlds, [measure(world) for world in options.worlds])
    print(text)
    if options.write:
        write_section("engine on several ranks", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

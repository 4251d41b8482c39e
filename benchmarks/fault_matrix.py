"""Every injected fault in every architecture, and every odd healthy run: what is reported, and after how many updates.

    python benchmarks/fault_matrix.py            # a few minutes
    python benchmarks/fault_matrix.py --write    # and into RESULTS.md

The scenarios are in tests/watcher/matrix; `make test` runs each fault in one architecture, and all healthy runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from pathlib import Path

import torch
from results import machine, write_section

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from watcher.matrix.architectures import ARCHITECTURES
from watcher.matrix.drive import updates_needed, watched
from watcher.matrix.faults import FAULTS
from watcher.matrix.healthy import HEALTHY


def faults() -> tuple[list[str], int, int]:
    lines = [
        f"| fault | any of | {' | '.join(ARCHITECTURES)} | updates needed |",
        f"|---|---|{'---|' * len(ARCHITECTURES)}---|",
    ]
    plain: list[str] = []
    told = tried = 0
    for fault in FAULTS.values():
        cells, needed = [], []
        for name, architecture in ARCHITECTURES.items():
            if name in fault.without:
                cells.append("–")
                continue
            seen = watched(lambda fault=fault, architecture=architecture: fault.train(architecture))
            right = sorted(seen.codes & fault.codes)
            tried += 1
            told += bool(right)
            cells.append(" ".join(right) or "**missed**")
            updates = updates_needed(seen, fault.codes) if right else None
            if updates is not None:
                needed.append(max(updates - fault.at, 1))
        shown = f"{statistics.median(needed):.0f}" if needed else "4 (events)"
        after = f" after update {fault.at}" if fault.at and needed else ""
        codes = " ".join(sorted(fault.codes))
        row = f"| {fault.name} | {codes} | {' | '.join(cells)} | {shown}{after} |"
        print(row, flush=True)
        if set(cells) <= {codes, "–"}:
            plain.append(f"{fault.name} ({codes})")
        else:
            lines.append(row)
    simple = f"Reported by the one code that was listed, in every architecture: {', '.join(plain)}."
    return [simple, "", *lines], told, tried


def healthy(seeds: int) -> tuple[list[str], int, int]:
    wrong = []
    for name, train in HEALTHY.items():
        for seed in range(seeds):
            seen = watched(train, seed)
            wrong += [
                f"| {name} | {seed} | {f.code} {f.severity.value} | {f.message} |"
                for f in seen.serious
            ]
    if not wrong:
        return [], 0, seeds * len(HEALTHY)
    return (
        ["| run | seed | reported | message |", "|---|---|---|---|", *wrong],
        len(wrong),
        seeds * len(HEALTHY),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="seeds for each healthy run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    false_lines, false, runs = healthy(args.seeds)
    print(
        f"healthy: {false} errors and warnings in {runs} runs", *false_lines, sep="\n", flush=True
    )
    lines, told, tried = faults()
    body = [
        f"`python benchmarks/fault_matrix.py`, {machine()}, torch {torch.__version__}",
        "",
        f"**{told} of {tried}** injected faults are reported with a right code ({len(FAULTS)} faults x {len(ARCHITECTURES)} architectures; – where it is "
        f"not a fault). **{false}** errors or warnings in {runs} healthy but odd runs ({len(HEALTHY)} x {args.seeds} seeds).",
        "",
        *false_lines,
        *([""] if false_lines else []),
        *lines,
    ]
    print(body[2])
    if args.write:
        write_section("faults and healthy runs", "\n".join(body))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long `fallline check` takes to start: against the smallest program that parses a command line.

    python benchmarks/startup.py [--runs 40] [--write]

Both read one empty file. They run in turns, in fresh processes; CPU time, so that other work on the machine hardly
matters; the median of the paired ratios is the result. The bar is 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from results import machine, write_section

BARE = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("path")
with open(parser.parse_args().path, "rb") as file:
    file.read()
"""
BAR = 1.5


def cpu_seconds(command: list[str], folder: str, environment: dict[str, str]) -> float:
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument(
        "--write", action="store_true", help="put the result into benchmarks/RESULTS.md"
    )
    args = parser.parse_args()
    # without compiled files every start compiles fallline again, which no installed program does
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bare.py").write_text(BARE)
        Path(folder, "empty.py").touch()
        fallline = str(Path(sys.executable).with_name("fallline"))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "bare argparse program": [sys.executable, "bare.py", "empty.py"],
            "fallline check": [fallline, "check", "empty.py"],
        }
        for command in commands.values():
            cpu_seconds(command, folder, environment)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(args.runs):
            for name, command in commands.items():
                times[name].append(cpu_seconds(command, folder, environment))
    pairs = zip(times["fallline check"], times["bare argparse program"], strict=True)
    ratio = statistics.median(ours / bare for ours, bare in pairs)
    rows = ["| program | CPU ms, median |", "|---|---|"]
    rows += [
        f"| `{name}` | {statistics.median(values) * 1000:.1f} |" for name, values in times.items()
    ]
    verdict = f"`fallline check` on an empty file takes **{ratio:.2f}** times a bare argparse program (bar: {BAR})."
    body = "\n".join([*rows, "", verdict])
    print(body)
    if args.write:
        write_section(
            "start-up",
            f"`python benchmarks/startup.py`, {machine()}, {args.runs} runs in turns\n\n{body}",
        )
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

"""The reader never crashes: reads every .py file of the standard library and of site-packages (or of the folders given).

    python benchmarks/fuzz.py [FOLDER ...] [--jobs 2] [--limit N]

Each file gets an `import torch` at its end, so that nothing is passed over and every rule looks at all of it.
Prints each crash with its file, the slowest files, and how many files were read; fails if anything crashed.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fallline.rules import all_rules
from fallline.syntax import Project
from fallline.verdict.reading import read_data


def read(path: str) -> tuple[str, float, int, str]:
    """(path, CPU seconds, findings, the crash if there was one)"""
    started = time.process_time()
    try:
        reading = read_data(
            path, Path(path).read_bytes() + b"\nimport torch\n", Project(), all_rules()
        )
        return (
            path,
            time.process_time() - started,
            len(reading.findings),
            "\n".join(reading.failures),
        )
    except Exception:
        return path, time.process_time() - started, 0, traceback.format_exc(limit=-3)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="*", default=[sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=0, help="a random sample of this many files")
    args = parser.parse_args()
    files = sorted(
        {str(p) for folder in args.folders for p in Path(folder).rglob("*.py") if p.is_file()}
    )
    if args.limit:
        files = random.Random(0).sample(files, min(args.limit, len(files)))
    crashes = 0
    slowest: list[tuple[float, str]] = []
    findings = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for path, seconds, found, crash in pool.map(read, files, chunksize=16):
            findings += found
            slowest = sorted([*slowest, (seconds, path)], reverse=True)[:5]
            if crash:
                crashes += 1
                print(f"{path}\n{crash}", flush=True)
    print(f"{len(files)} files read, {findings} findings, {crashes} crashes")
    for seconds, path in slowest:
        print(f"  {seconds:6.2f} s  {path}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())

"""`fallline check` over whole projects, one process each: CPU seconds, files and findings.

    python benchmarks/check_projects.py FOLDER ... [--source SRC] [--findings OUT]

Typical files say little about the slowest project. `--source` measures another checkout of fallline (its `src` folder);
`--findings` keeps the JSON of each project there, so that two runs can be compared finding by finding.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

CHECK = ["-m", "fallline", "check", "--no-cache", "--jobs", "1", "--output-format", "json", "."]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--source", type=Path, help="the src folder of another fallline")
    parser.add_argument("--findings", type=Path, help="keep the findings in this folder")
    args = parser.parse_args()
    environment = dict(os.environ)
    if args.source is not None:
        environment["PYTHONPATH"] = str(args.source.resolve())
    print("| project | files | findings | CPU s |\n|---|---|---|---|", flush=True)
    for folder in args.folders:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *CHECK], cwd=folder, env=environment, capture_output=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode > 1:
            raise SystemExit(f"{folder}: {done.stderr.decode(errors='replace')[-2000:]}")
        seconds = after.ru_utime - before.ru_utime
        files = sum(1 for end in ("*.py", "*.ipynb") for _ in folder.rglob(end))
        found = json.loads(done.stdout)
        print(f"| {folder.name} | {files} | {len(found)} | {seconds:.2f} |", flush=True)
        if args.findings is not None:
            args.findings.mkdir(parents=True, exist_ok=True)
            (args.findings / f"{folder.name}.json").write_bytes(done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

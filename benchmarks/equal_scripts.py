"""`fallline equal` on public training scripts, as somebody would use it who did not write them.

    python benchmarks/equal_scripts.py --mirror DIR [--site DIR] [--work DIR] [NAME ...]

`--mirror` and `--site` as for real_scripts.py, which lays the scripts out: data is made up, loops are untouched. What `equal` says of a script
is kept in `--work` and printed; what it is worth has to be judged by hand.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from public_scripts.entry import Real
from public_scripts.scripts import SCRIPTS
from real_scripts import Stage, Unusable

SECONDS = 600


def said(stage: Stage, real: Real) -> str:
    """What `fallline equal` prints about it, and how long it took."""
    folder = stage.lay(real, "equal")
    script, begun = folder / real.script, time.monotonic()
    command = [sys.executable, "-m", "fallline", "equal", script.name, *shlex.split(real.args)]
    try:
        done = subprocess.run(
            command, cwd=script.parent, env=stage.environment(real, folder), capture_output=True, text=True,
            timeout=SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    text = done.stdout.rstrip()
    if done.returncode == 2:
        text += f"\n{done.stderr[-2000:]}"
    return f"exit status {done.returncode}, {time.monotonic() - begun:.0f} s\n{text}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/equal-scripts"))
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    stage = Stage(args.mirror, args.site, args.work)
    for real in SCRIPTS:
        if args.names and real.name not in args.names:
            continue
        kept = args.work / f"{real.name}.txt"
        if not kept.exists():
            try:
                text = said(stage, real)
            except (Unusable, subprocess.CalledProcessError) as why:
                text = f"not laid out: {why}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text, encoding="utf-8")
        print(f"{real.repo} {real.script}: {kept.read_text()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

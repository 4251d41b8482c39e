"""`fallline equal` on public training scripts, as somebody would use it who did not write them.

    python benchmarks/equal_scripts.py --mirror DIR [--site DIR] [--work DIR] [--write] [NAME ...]

`--mirror` and `--site` as for real_scripts.py, which lays the scripts out: data is made up, loops are untouched. What `equal` says of a script
is kept in `--work` and printed; a script that is kept there is not run again. Whether it wrote anything into the script's folder is looked up. What a
"different" is worth has to be judged by hand: JUDGED.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from public_scripts.entry import Real
from public_scripts.scripts import SCRIPTS
from real_scripts import Stage, Unusable
from results import machine, write_section

SECONDS = 1500
# by script and comparison: why "different" is right
JUDGED: dict[tuple[str, str], str] = {}


@dataclass
class Said:
    """What `fallline equal` says about one script."""

    status: int
    seconds: float
    text: str
    answer: dict[str, Any] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)  # files of the script that are not as before
    cpu: float = 0.0  # seconds

    def wrong(self, name: str) -> list[str]:
        """What is there to be looked at."""
        compared = self.answer.get("comparisons", ())
        found = [
            f"{c['what']} differs: {c['message']}"
            for c in compared
            if not c["equal"] and (name, c["what"]) not in JUDGED
        ]
        found += [f"touched {path}" for path in self.touched]
        return found if self.answer else [*found, self.text[-300:]]


def said(stage: Stage, real: Real) -> Said:
    folder, out = stage.lay(real, "equal", bits=False), stage.work / "out" / real.name
    script, before = folder / real.script, _files(folder)
    command = [sys.executable, "-m", "fallline", "equal", "--out", str(out), script.name]
    begun, spent = time.monotonic(), _cpu()
    try:
        done = subprocess.run(
            [*command, *shlex.split(real.args)], cwd=script.parent, env=stage.environment(real, folder),
            capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Said(124, SECONDS, f"not done after {SECONDS} s")
    after = _files(folder)
    touched = sorted(p for p in {**before, **after} if before.get(p) != after.get(p))
    text = done.stdout if done.returncode < 2 else done.stdout + done.stderr[-2000:]
    answer = out / "equal.json"
    known = json.loads(answer.read_text()) if answer.exists() else {}
    wall = time.monotonic() - begun
    return Said(done.returncode, wall, text, known, touched, _cpu() - spent)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything but Python's own cache."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def row(real: Real, found: Said) -> str:
    compared = found.answer.get("comparisons", [])
    same = ", ".join(dict.fromkeys(c["what"] for c in compared if c["equal"])) or "-"
    apart = "; ".join(
        f"{c['what']}: {c['code'] or ''} {c['ratio'] or 0:.2f}x ({JUDGED.get((real.name, c['what']), '**not judged**')})"
        for c in compared
        if not c["equal"]
    )
    why = found.answer.get("unvaried", [])
    left = "; ".join(f"{one['what']}: {one['why'][:110]}" for one in why)
    if not compared:
        left = left or found.text.strip().rpartition("\n")[2][:200]
    cells = (f"{real.repo} {real.script}", same, apart or "-", left or "-", f"{found.cpu:.0f}" if found.cpu else "-", str(found.answer.get("runs", "-")), str(len(found.touched)))  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


HEAD = (
    "| script | the same | different | not varied, and why | seconds of CPU | runs | files written |",
    "|---|---|---|---|---:|---:|---:|",
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/equal-scripts"))
    parser.add_argument("--write", action="store_true", help="the section of RESULTS.md")
    parser.add_argument("--known", action="store_true", help="run nothing, only what is kept")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    stage = Stage(args.mirror.resolve(), args.site and args.site.resolve(), args.work.resolve())
    rows, odd = [], 0
    for real in SCRIPTS:
        kept = args.work / f"{real.name}.json"
        if (args.names and real.name not in args.names) or (args.known and not kept.exists()):
            continue
        if not kept.exists():
            try:
                found = said(stage, real)
            except (Unusable, subprocess.CalledProcessError) as why:
                print(f"{real.name}: not laid out: {why}", flush=True)
                continue
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
        found = Said(**json.loads(kept.read_text()))
        wrong = found.wrong(real.name)
        rows.append(row(real, found))
        odd += bool(wrong)
        print(f"{real.name}: {found.status}, {found.seconds:.0f} s, {found.cpu:.0f} s of CPU\n{found.text}", *(f"  !! {w}" for w in wrong), sep="\n", flush=True)  # fmt: skip
    if args.write:
        body = f"`python benchmarks/equal_scripts.py --mirror DIR --site DIR --write`, {machine()}. Data is made up, loops are untouched.\n\n"
        body += f"**{len(rows)} scripts**, {odd} with something that was not expected.\n\n"
        write_section("One update in other ways, public scripts", body + "\n".join((*HEAD, *rows)))
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())

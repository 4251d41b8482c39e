"""What `ask` says of a GPU, run on one: the experiments that need a device and have no record yet, and every snippet marked `gpu: yes`.

python benchmarks/ask_gpu.py [--out FILE] [MODULE...]

MODULE names a module of experiments, where they are not registered yet. FILE gets the record, for `fallline prove --merge FILE --out docs`.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from fallline.proof.experiment import experiments_in, where
from fallline.proof.measure import outcome
from fallline.proof.record import Outcome, recorded, written
from fallline.triage.claim import Action, claims


def _unrecorded() -> dict[str, str]:
    """The experiments without a record, by name, with their modules."""
    return {name: module for name, module in where().items() if recorded(name) is None}


def _measured(name: str, module: str) -> Outcome:
    found = outcome(name, module)
    print(f"{found.verdict.upper():8} {name} ({found.seconds:.1f} s): {found.conclusion}")
    for words, held in found.holds.items():
        print(f"         {'yes' if held else 'NO '} {words}")
    if found.problem:
        print(found.problem)
    sys.stdout.flush()
    return found


def _kept(name: str, action: Action) -> bool:
    """Whether a snippet runs and what it promises holds after it."""
    names: dict[str, Any] = {"torch": torch}
    try:
        exec(action.proof.get("world", ""), names)
        exec(action.code, names)
        kept = bool(eval(action.proof["check"], names))
    except Exception:
        traceback.print_exc(file=sys.stdout)
        kept = False
    print(
        f"{'PASS' if kept else 'FAIL'}     snippet of {name}: {action.proof['check']}", flush=True
    )
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--out", metavar="FILE", type=Path)
    args = parser.parse_args()
    start = time.perf_counter()
    print(torch.__version__, torch.cuda.get_device_name())
    wanted = {name: module for module in args.modules for name in experiments_in(module)}
    found = [_measured(name, module) for name, module in (wanted or _unrecorded()).items()]
    snippets = [(c.id, a) for c in claims() for a in c.actions if "gpu" in a.proof]
    kept = [_kept(name, action) for name, action in snippets]
    if args.out is not None:
        args.out.write_text(written(found), encoding="utf-8")
    proved = sum(f.verdict == "proved" for f in found)
    print(f"{proved} of {len(found)} facts proved, {sum(kept)} of {len(kept)} snippets kept")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0 if proved == len(found) and all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The first updates of a script, recorded: `python -m fallline.integrations.first_updates --out DIR --updates N SCRIPT ARGS`.

This is a trial, not the user's own run. What the script does not seed is seeded here, so that two trials of one script are the same, and
what it writes goes into a folder that is thrown away. `--out` has to be a temporary folder, because those are written as they are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from typing import Any

from fallline.instruments.aside import OFFLINE, Aside
from fallline.instruments.same.sources import pin, pin_kernels
from fallline.instruments.script import Observer, Script, run_until
from fallline.taps.patches import Patches

__all__ = ["main"]


class _Recorder(Observer):
    """Watches from the moment that torch is there."""

    def __init__(self, out: str) -> None:
        from fallline.integrations.watch import watch  # made when the script has imported torch

        pin_kernels("torch")
        self._watch = watch(out=out)

    def ended(self, ran: Any) -> None:
        self._watch.stop()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    script = Script(args.target, tuple(args.arguments), args.module)
    os.environ.update(OFFLINE)
    patches, written = Patches(), tempfile.mkdtemp(prefix="tmp-fallline-aside-")
    for source in ("python", "numpy", "entropy"):
        pin(source, patches)
    Aside(written, patches)
    try:
        return run_until(script, lambda: _Recorder(args.out), updates=args.updates).status
    finally:
        patches.remove()
        shutil.rmtree(written, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

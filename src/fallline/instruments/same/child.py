"""One run of the script, in a process of its own: `python -m fallline.instruments.same.child RECORD OPTIONS SCRIPT ARGS`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from fallline.instruments.same.sources import Draws, pin, pin_kernels
from fallline.instruments.script import Script, run_until
from fallline.taps.patches import Patches

_MARK = "deterministic implementation"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--until", type=int, default=-1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--pin", default="")
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    path = f"{args.record}.rank{os.environ.get('RANK', '0')}"
    patches = Patches()
    pin(args.pin, patches)

    from fallline.instruments.same.record import Record  # imports torch

    said: list[str] = []
    if args.pin == "kernels":
        _listen(said)
    with Path(path).open("w", encoding="utf-8") as file:
        record = Record(file, until=args.until, seconds=args.seconds, state=args.state)
        draws = Draws(record.drawn)
        if args.until >= 0:
            draws.install()
        ran = run_until(
            Script(args.target, tuple(args.arguments), args.module),
            record,
            updates=args.updates,
            ready=lambda taps, ran: pin_kernels(args.pin),
        )
        draws.remove()
    patches.remove()
    if said:
        Path(f"{path}.said").write_text(json.dumps(said), encoding="utf-8")
    return 130 if ran.interrupted else ran.status


def _listen(said: list[str]) -> None:
    """torch warns of operations that have no deterministic kernel, once for each."""
    shown = warnings.showwarning

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        if _MARK in str(message):
            said.append(str(message).partition("\n")[0])
        else:
            shown(message, *args, **kwargs)

    warnings.showwarning = show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

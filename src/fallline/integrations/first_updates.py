"""The first updates of a script, recorded: `python -m fallline.integrations.first_updates --out DIR --updates N SCRIPT ARGS`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fallline.instruments.script import Observer, Script, run_until

__all__ = ["main"]


class _Recorder(Observer):
    """Watches from the moment that torch is there."""

    def __init__(self, out: str) -> None:
        from fallline.integrations.watch import watch  # made when the script has imported torch

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
    ran = run_until(script, lambda: _Recorder(args.out), updates=args.updates)
    return ran.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

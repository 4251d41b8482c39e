"""`fallline measure time`"""

from __future__ import annotations

import argparse

from fallline.cli.measuring import _common

__all__ = ["HELP", "add_arguments"]

HELP = """\
where the time goes: data, copies, forward, backward, communication, step, stalls, idle device

  fallline measure time train.py --its --own arguments
  fallline measure time --updates 60 --out measured train.py

Runs the script for some updates: a warm-up, a timed window, and a shorter one under torch.profiler, whose Chrome trace
--out writes to DIR/trace.json. Says in one sentence what to change, with the number behind it, and what to measure next.
Names the lines that wait for the device. If training waits for the loader, tries other num_workers and pin_memory on the
same dataset.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common.add_output(parser)
    parser.add_argument(
        "--loader-for",
        type=_common.seconds,
        default=20.0,
        metavar="SECONDS",
        help="how long to try other loader settings; 0 tries none (default: 20)",
    )
    _common.add_script(parser, updates=20)

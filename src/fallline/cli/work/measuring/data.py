"""What `fallline measure data` does."""

from __future__ import annotations

import argparse
import sys

from fallline.cli.work.measuring import _common
from fallline.instruments.frame import Progress
from fallline.integrations.data import measure_script
from fallline.report.html_data import data_page
from fallline.runs.findings import findings_text
from fallline.show.terminal import wants_colour

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    script = _common.script(args)
    with Progress("reading batches:") as progress:
        taught, ran = measure_script(script, batches=args.batches, progress=progress)
    taught.colour = wants_colour(args.color, sys.stdout)
    files = None
    if args.out:
        page = data_page(taught, script.path).encode()
        files = {
            "findings.json": findings_text(taught.findings).encode() + b"\n",
            "data.html": page,
        }
    _common.deliver(taught, args, files)
    return 130 if ran.interrupted else ran.status

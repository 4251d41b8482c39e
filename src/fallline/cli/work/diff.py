"""What `fallline diff` does."""

from __future__ import annotations

import argparse
import sys

from fallline.diff import compare
from fallline.report.diff import summary
from fallline.report.diff_page import write_page
from fallline.report.json import plain
from fallline.runs.read import read_run
from fallline.show.terminal import Paint, wants_colour
from fallline.untrusted import json_text

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    a, b = read_run(args.a), read_run(args.b)
    found = compare(a, b, [read_run(folder) for folder in args.repeat])
    if args.output_format == "json":
        print(json_text(plain(found.to_json()), indent=2))
    else:
        print(summary(a, b, found, Paint(wants_colour(args.color, sys.stdout))), end="")
    if args.html is not None:
        page = write_page(a, b, found, args.html)
        if args.output_format == "text":
            print(f"\n  {page}")
    return 0 if found.same else 1

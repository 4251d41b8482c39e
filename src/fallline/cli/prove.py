"""`fallline prove`: makes the measurement behind a rule or a fact again, on this machine."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser


__all__ = ["HELP", "add_arguments"]

HELP = """\
Run the experiment behind a rule or a fact: a small measurement with and without the mistake, and the conditions that
must hold for the claim to be true. Exit status 0: proved, 1: refuted.

  fallline prove FL201
  fallline prove clip-scaled batchnorm-alone-explodes
  fallline prove --list
  fallline prove --all --out evidence
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="a rule's code or name, or a fact's name"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the experiments; with NAME, only those whose name contains it",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="run every experiment; with --out, write evidence.md and evidence.json",
    )
    parser.add_argument(
        "--continue", dest="go_on", action="store_true",
        help="with --all --out: keep the results of a run that was stopped, and run the rest",
    )  # fmt: skip
    parser.add_argument(
        "--merge", metavar="FILE", help="take over the results from another machine"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write the evidence into this folder; without it nothing is written",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="how many experiments to run at a time (default: one for each core)",
    )
    parser.add_argument(
        "--needs", choices=("cuda",), help="run only the experiments that need this device"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="add N to every seed, to see whether the claims hold with other random numbers; writes nothing",
    )  # fmt: skip
    parser.add_argument(
        "--output-format", choices=("text", "json"), default="text", help="text (default) or json"
    )

"""`fallline eval`: grades advice against scenarios, and names the fact that refutes a wrong statement."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass

__all__ = ["HELP", "add_arguments"]

HELP = """\
Grade training advice. Each scenario is a question, with what a good answer must say, must not say, and in which order.
Code in an answer is checked like any other code, and never run.

  fallline eval                                      grade `fallline ask`
  fallline eval --answer reply.md                    grade one answer, whoever wrote it
  fallline eval --agent 'my-agent --print'           send each scenario to its standard input, and grade its output
  fallline eval --agent 'my-agent' --skills DIR      without and with the skills, side by side

Exit status: 0 when everything passes, 1 when something fails, 2 when the command line is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answer", metavar="FILE", help="grade this one answer")
    parser.add_argument("--agent", metavar="COMMAND", help="the shell command to grade")
    parser.add_argument(
        "--skills",
        metavar="DIR",
        help="with --agent: grade it a second time with the router skill from this folder",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the agent may take for one answer (default: 300)",
    )
    parser.add_argument(
        "--scenarios", metavar="DIR", help="use these scenarios instead of fallline's own"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="grade only this scenario (repeatable)",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text (default), markdown or json",
    )

"""Which commands there are."""

from __future__ import annotations

import os

__all__ = ["GROUPS", "available"]

# (heading, ((command, one line), ...)). Each command is two modules: fallline/cli/<command>.py with HELP (the long help)
# and add_arguments(parser), and fallline/cli/work/<command>.py with run(args) -> exit status. The second is imported only
# when the command runs, so that it can import what it needs at its top and `--help` stays quick.
GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "start with",
        (
            ("check", "read training code and find what is wrong in it"),
            ("run", "run a training script and watch it; names the line where a NaN was born"),
            ("ask", "ask a training question; says what to measure before what to change"),
        ),
    ),
    (
        "measure and prove",
        (
            (
                "measure",
                "measure memory, time, precision, reproducibility, ranks, clipping or a model",
            ),
            ("equal", "make one update in other ways and compare: accumulation, precision, ranks"),
            ("diff", "compare two watched runs and name what changed first"),
            ("bisect", "find the commit or the option that changed the training"),
            ("report", "show a watched run again, and write its HTML page"),
            ("rule", "explain a rule"),
            ("prove", "run the experiment behind a rule or a fact"),
            ("demo", "see it work on an example script"),
        ),
    ),
    (
        "for agents and editors",
        (
            ("mcp", "serve check, fix, ask and rules to agents (Model Context Protocol)"),
            ("lsp", "serve findings and fixes to editors (Language Server Protocol)"),
            ("skills", "write the Agent Skills into a folder"),
            ("eval", "grade advice against scenarios"),
            ("completion", "complete commands and options in the shell"),
        ),
    ),
)


def available() -> frozenset[str]:
    """The commands that this installation has."""
    here = os.path.dirname(__file__)
    return frozenset(
        c for _, rows in GROUPS for c, _ in rows if os.path.exists(os.path.join(here, c + ".py"))
    )

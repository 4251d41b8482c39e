"""`fallline completion SHELL`: what the shell offers on the Tab key, made from the parsers themselves."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass

__all__ = ["HELP", "add_arguments"]

HELP = """\
Print a script that completes commands, options, their values and the codes of rules in your shell.

  eval "$(fallline completion bash)"                                        in ~/.bashrc
  eval "$(fallline completion zsh)"                                         in ~/.zshrc, after compinit
  fallline completion fish > ~/.config/fish/completions/fallline.fish
"""

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")

"""`fallline lsp`: the door for editors, over standard input and output."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["HELP", "add_arguments"]

HELP = """\
Serve diagnostics, quick fixes and hovers to an editor over standard input and output, with the Language Server Protocol.
Open files and notebooks are checked as you type, saved or not, together with the files around them. Settings and
ignore comments work as in `fallline check`. No code is run, and nothing is written.

  fallline lsp                          started by an editor, not by hand

  vim.lsp.config('fallline', { cmd = { 'fallline', 'lsp' }, filetypes = { 'python' }, root_markers = { 'pyproject.toml', '.git' } })
  vim.lsp.enable('fallline')            Neovim 0.11 or newer; docs/editors.md has Helix, Emacs, Sublime Text and VS Code

Needs pygls: pip install 'fallline[lsp]'
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="accepted because some editors pass it; it changes nothing",
    )

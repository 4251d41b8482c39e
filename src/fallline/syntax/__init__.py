"""Source text with its names resolved: what the syntax rules, the reader and the fixes look at. No torch.

A module of this package can be had without the others: a question without code need not wait for the reader.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallline.syntax.edits import Editor
    from fallline.syntax.module import Module
    from fallline.syntax.project import Project
    from fallline.syntax.source import Source, UnreadableError

_HOME = {
    "Editor": "edits",
    "Module": "module",
    "Project": "project",
    "Source": "source",
    "UnreadableError": "source",
}

__all__ = ["Editor", "Module", "Project", "Source", "UnreadableError"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"fallline.syntax.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fallline.syntax' has no attribute {name!r}")

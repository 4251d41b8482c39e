"""Source text with its names resolved: what the syntax rules, the reader and the fixes look at. No torch."""

from fallline.syntax.edits import Editor
from fallline.syntax.module import Module
from fallline.syntax.project import Project
from fallline.syntax.source import Source, UnreadableError

__all__ = ["Editor", "Module", "Project", "Source", "UnreadableError"]

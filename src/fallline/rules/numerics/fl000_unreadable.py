"""FL000 unreadable: the file cannot be read or parsed. The reader itself reports it; this is its document."""

from __future__ import annotations

from fallline.finding import Severity
from fallline.rule import Rule

__all__ = ["Unreadable"]


class Unreadable(Rule):
    code = "FL000"
    name = "unreadable"
    severity = Severity.ERROR
    what = "Reports a file, or cells of a notebook, that cannot be read or parsed: missing, a syntax error, an unknown encoding, not text."
    why = (
        "Nothing in it was checked, so the absence of findings says nothing about it.\n"
        "The other files are still read, and so are the other cells of a notebook: there a cell that is not Python is a note, and so is "
        "course material that stops at a blank to fill in (`x = <YOUR CODE>`). Code for a Python that is newer "
        "than the one that runs fallline is read too, up to the grammar of Python 3.14."
    )
    instead = "Correct the syntax or the encoding, or leave the file out with `exclude` in `[tool.fallline]`."
    wrong = ("import torch\n\n\ndef train(model:  # FL000\n    pass\n",)
    right = ("import torch\n\n\ndef train(model):\n    pass\n",)

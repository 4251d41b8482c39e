"""What the installed libraries say of themselves: their sources, read as text. Nothing of them is imported or executed."""

from fallline.triage.library.answering import Told, told_of
from fallline.triage.library.documented import Entry, documented, names_in
from fallline.triage.library.keywords import refused_keyword
from fallline.triage.library.raised import Site, advice_in, raised_by

__all__ = [
    "Entry",
    "Site",
    "Told",
    "advice_in",
    "documented",
    "names_in",
    "raised_by",
    "refused_keyword",
    "told_of",
]

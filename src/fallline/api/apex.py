"""apex."""

from __future__ import annotations

import re

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import Sequence, Unknown, Value
from fallline.events import Opaque

__all__ = ["LIBRARY"]


def _amp(paper: Paper, call: Call, name: str) -> Value:
    last = name.rpartition(".")[2]
    paper.emit(Opaque(paper.place(call.node), what=last))
    return Sequence([*call.args[:2]]) if last == "initialize" else Unknown()


LIBRARY = Library(families=((re.compile(r"^apex\.amp"), _amp),))

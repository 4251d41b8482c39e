"""Outputs of models under names: `CausalLMOutput(loss=loss, logits=logits)` of Transformers and its kin."""

from __future__ import annotations

import re

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import Tensor, Value, record

__all__ = ["LIBRARY"]

_OUTPUT = re.compile(r"\.[A-Z]\w*Output(With\w+)?$")


def _output(paper: Paper, call: Call, name: str) -> Value | None:
    if not any(isinstance(paper.settled(value), Tensor) for value in call.kwargs.values()):
        return None
    made = paper.make("object", call.node, record=True)
    made.attrs = record([], [], call.kwargs)
    return made


LIBRARY = Library(families=((_OUTPUT, _output),))

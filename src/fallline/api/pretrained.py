"""Libraries of ready-made models: transformers, timm, torchvision, open_clip, diffusers, peft."""

from __future__ import annotations

import re

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import Thing, Unknown, Value

__all__ = ["LIBRARY"]

_MAKES = re.compile(
    r"^(transformers\.|timm\.|torchvision\.models|open_clip|diffusers|peft\.|segmentation_models_pytorch)"
    r".*\b(from_pretrained|create_model|get_peft_model|from_config)$|^torchvision\.models\."
)
# `X.from_pretrained` of these is not a module: a call of it builds no graph that anybody could keep.
_NO_MODULE = re.compile(
    r"(Tokenizer|Processor|Extractor|Config|Scheduler|Pipeline|Pipe)(Fast|XL|2)?$|^Auto(Pipeline|Tokenizer)|DiffusionPipeline"
)


def _model(paper: Paper, call: Call, name: str) -> Value:
    path, _, last = name.rpartition(".")
    owner = path.rpartition(".")[2]
    if _NO_MODULE.search(owner):
        return Unknown()
    base = paper.settled(call.args[0]) if call.args and last == "get_peft_model" else None
    if isinstance(base, Thing):
        return base
    return paper.make("model", call.node, type=owner if last == "from_pretrained" else last)


LIBRARY = Library(families=((_MAKES, _model),))

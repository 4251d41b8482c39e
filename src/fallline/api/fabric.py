"""Lightning Fabric: the loop is the program's own, `fabric.backward` and `clip_gradients` do the rest."""

from __future__ import annotations

import re

from fallline.api import contexts
from fallline.api.call import Call
from fallline.api.gradients import Clipping, backward, clip
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.torch.make import enabled_of
from fallline.api.values import NONE, Context, Sequence, Thing, Unknown, Value

__all__ = ["LIBRARY"]


def _fabric(paper: Paper, call: Call, name: str) -> Value:
    return paper.make("fabric", call.node)


def _setup(paper: Paper, fabric: Thing, call: Call) -> Value:
    given = [paper.settled(v) for v in call.args]
    for value in given:
        if isinstance(value, Thing):
            value.facts["fabric"] = fabric.id
    return given[0] if len(given) == 1 else Sequence(list(given))


def _no_sync(paper: Paper, call: Call) -> Value:
    model = paper.settled(call.arg(0, "module") or Unknown())
    on = enabled_of(paper, call.arg(1, "enabled"))
    return contexts.no_sync(model) if on and isinstance(model, Thing) else Context()


def _clip(paper: Paper, call: Call) -> Value:
    limit = call.arg(None, "max_norm") or call.arg(None, "clip_val")
    how: Clipping = "value" if "clip_val" in call.kwargs else "norm"
    target = call.arg(1, "optimizer") or call.arg(0, "module")
    return clip(paper, call, how, target, limit)


def _method(paper: Paper, fabric: Thing, name: str, call: Call) -> Value:
    match name:
        case "setup" | "setup_module" | "setup_optimizers" | "setup_dataloaders":
            return _setup(paper, fabric, call)
        case "backward":
            backward(paper, paper.settled(call.arg(0, "tensor", "loss") or Unknown()), call)
            return NONE
        case "no_backward_sync":
            return _no_sync(paper, call)
        case "clip_gradients":
            return _clip(paper, call)
        case "autocast":
            return contexts.autocast(None)
    return Unknown(f"fabric.{name}")


LIBRARY = Library(
    families=((re.compile(r"fabric.*\bFabric$"), _fabric),),
    any_method={"fabric": _method},
)

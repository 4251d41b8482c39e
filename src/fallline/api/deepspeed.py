"""DeepSpeed: the engine divides, steps and clears by itself, by a configuration that is not in view."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.gradients import backward
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import NONE, Sequence, Thing, Unknown, Value
from fallline.events import Opaque

__all__ = ["LIBRARY"]


def _initialize(paper: Paper, call: Call) -> Value:
    return Sequence(
        [
            paper.make("engine", call.node),
            paper.make("optimizer", call.node, engine=True),
            paper.make("loader", call.node),
            Unknown("scheduler"),
        ]
    )


def _method(paper: Paper, engine: Thing, name: str, call: Call) -> Value | None:
    match name:
        case "backward":
            backward(paper, paper.settled(call.arg(0, "loss") or Unknown()), call, "deepspeed")
            paper.emit(Opaque(paper.place(call.node), what="engine.backward"))
            return NONE
        case "step" | "zero_grad":
            paper.emit(Opaque(paper.place(call.node), what=f"engine.{name}"))
            return NONE
        case "train" | "eval" | "parameters" | "micro_batch" | "over":
            return Unknown(name)
    return None


LIBRARY = Library(
    functions={"deepspeed.initialize": _initialize},
    any_method={"engine": _method},
    attributes={
        ("engine", "module"): lambda paper, engine: engine,
        ("engine", "optimizer"): lambda paper, engine: paper.make("optimizer", None, engine=True),
    },
)

"""DeepSpeed: the engine divides, steps and clears by itself, by a configuration that is not in view."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.gradients import backward
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.torch.model import set_mode
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import NONE, Const, Sequence, Thing, Unknown, Value, truth_of
from fallline.events import Opaque

__all__ = ["LIBRARY"]


def _initialize(paper: Paper, call: Call) -> Value:
    engine = paper.make("engine", call.node)
    optimizer = paper.make("optimizer", call.node, engine=True)
    model = paper.settled(call.arg(1, "model") or Unknown())
    if isinstance(model, Thing) and model.sets:
        engine.facts["parameters"] = optimizer.facts["parameters"] = model.sets
    engine.attrs["optimizer"] = optimizer
    return Sequence([engine, optimizer, paper.make("loader", call.node), Unknown("scheduler")])


def _method(paper: Paper, engine: Thing, name: str, call: Call) -> Value | None:
    match name:
        case "backward":
            backward(paper, paper.settled(call.arg(0, "loss") or Unknown()), call, "deepspeed")
            paper.emit(Opaque(paper.place(call.node), what="engine.backward"))
            return NONE
        case "step" | "zero_grad":
            # by its configuration: now, or when the window is full
            paper.emit(Opaque(paper.place(call.node), what=f"engine.{name}"))
            optimizer = engine.attrs.get("optimizer")
            if name == "step" and isinstance(optimizer, Thing):
                emit_step(paper, optimizer, call.node, "framework")
            return NONE
        case "train" | "eval":
            mode = paper.settled(call.arg(0, "mode") or Const(True))
            set_mode(paper, engine, name == "train" and truth_of(mode), call)
            return engine
        case "parameters" | "micro_batch" | "over":
            return Unknown(name)
    return None


LIBRARY = Library(
    functions={"deepspeed.initialize": _initialize},
    any_method={"engine": _method},
    attributes={
        ("engine", "module"): lambda paper, engine: engine,
    },
)

"""mmengine: its loop calls `train_step` for every batch, and leaves the rest to it; `update_params` does everything."""

from __future__ import annotations

import ast

from fallline.api.call import Call
from fallline.api.framework import call_at
from fallline.api.gradients import backward
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import NONE, Tensor, Thing, Unknown, Value
from fallline.events import Opaque, ZeroGrad
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["LIBRARY"]


def _is_model(module: Module, cls: ast.ClassDef) -> bool:
    return any(base.startswith("mmengine.model.") for base in module.bases(cls))


def _train(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """`runner.train()`: train_step(data, optim_wrapper), batch by batch."""
    step = find_method(module, cls, "train_step")
    if step is None:
        return
    me = paper.instance(module, cls)
    given = paper.given(step[1])
    call = call_at(step[1])
    call.args = [given[a.arg] for a in step[1].args.args[1:]]
    for _ in paper.over(paper.make("loader", None), step[1]):
        paper.run_method(me, "train_step", call)


def _is_wrapper(optimizer: Thing) -> bool:
    return str(optimizer.facts.get("name", "")).rpartition(".")[2].startswith("optim_wrapper")


def _backward(paper: Paper, optimizer: Thing, call: Call) -> Value:
    if _is_wrapper(optimizer):
        backward(paper, paper.settled(call.arg(0, "loss") or Unknown()), call)
    else:
        # apex's FP16_Optimizer, DeepSpeed's: it does more than torch's own class
        paper.emit(Opaque(paper.place(call.node), what="optimizer.backward"))
    return NONE


def _update(paper: Paper, optimizer: Thing, call: Call) -> Value:
    """`update_params(loss)`: divides by the accumulation count, runs backward, steps and clears."""
    loss = paper.settled(call.arg(0, "loss") or Unknown())
    backward(paper, loss if isinstance(loss, Tensor) else Tensor(None), call, "mmengine")
    emit_step(paper, optimizer, call.node, "framework")
    at, sets = paper.place(call.node), optimizer.sets or None
    paper.emit(ZeroGrad(at, optimizer=optimizer.id, parameters=sets))
    return NONE


LIBRARY = Library(
    methods={("optimizer", "backward"): _backward, ("optimizer", "update_params"): _update},
    drivers=(Driver(_is_model, _train, "train_step"),),
)

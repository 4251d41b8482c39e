"""Composer: its Trainer calls a model's `forward(batch)` and `loss(outputs, batch)`, and does the rest itself."""

from __future__ import annotations

import ast

from fallline.api.framework import call_at, framework_backward
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import Tensor, Unknown
from fallline.events import ZeroGrad
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["LIBRARY"]


def _is_model(module: Module, cls: ast.ClassDef) -> bool:
    return any(base.rpartition(".")[2] == "ComposerModel" for base in module.bases(cls))


def _fit(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """`trainer.fit()`: micro-batch by micro-batch, the loss weighted by the Trainer."""
    loss_of = find_method(module, cls, "loss")
    if loss_of is None:
        return
    me = paper.instance(module, cls)
    optimizer = paper.make("optimizer", cls)
    batch = Tensor(False)
    for _ in paper.over(paper.make("loader", None), loss_of[1]):
        call = call_at(loss_of[1])
        call.args = [batch]
        outputs = paper.run_method(me, "forward", call) or Unknown()
        call.args = [outputs, batch]
        result = paper.settled(paper.run_method(me, "loss", call) or Unknown())
        loss = result if isinstance(result, Tensor) else Tensor(None, divided=None)
        framework_backward(paper, loss, call_at(loss_of[1]), "composer")
        emit_step(paper, optimizer, loss_of[1], "framework")
        paper.emit(ZeroGrad(paper.place(loss_of[1]), optimizer=optimizer.id))


LIBRARY = Library(drivers=(Driver(_is_model, _fit, "loss"),))

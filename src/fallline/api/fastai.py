"""fastai: the Learner's loop, and the callbacks that it calls on the way."""

from __future__ import annotations

import ast

from fallline.api.framework import call_at
from fallline.api.gradients import backward
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import Tensor, Thing
from fallline.events import ZeroGrad
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["LIBRARY"]

_BEGIN = ("before_fit", "before_epoch", "before_train")
_FIRST = ("before_batch", "after_pred", "after_loss", "before_backward")
_DRIVEN = ("after_backward", "before_step", "after_step", "after_batch", "after_loss")


def _is_callback(module: Module, cls: ast.ClassDef) -> bool:
    bases = module.bases(cls)
    return any(b.startswith("fastai.") and b.endswith("Callback") for b in bases)


def _fit(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """`learn.fit`: one batch is forward, backward, step, zero_grad, with a callback between each two."""
    me = paper.instance(module, cls)
    optimizer, model = paper.make("optimizer", cls), paper.make("model", cls)
    optimizer.facts["parameters"] = model.sets
    learner = Thing("object", "learn", None, {}, {"opt": optimizer, "model": model})
    me.attrs |= {"learn": learner, "opt": optimizer, "model": model}
    _tell(paper, me, *_BEGIN)
    for _ in paper.over(paper.make("loader", None), cls):
        loss = Tensor(True, model.sets, reduction="mean", born=paper.loops.iteration)
        learner.attrs["loss"] = me.attrs["loss"] = loss
        _tell(paper, me, *_FIRST)
        backward(paper, loss, call_at(cls))
        _tell(paper, me, "after_backward", "before_step")
        emit_step(paper, optimizer, cls, "direct")
        _tell(paper, me, "after_step")
        paper.emit(ZeroGrad(paper.place(cls), optimizer=optimizer.id, parameters=model.sets))
        _tell(paper, me, "after_batch")


def _tell(paper: Paper, me: Thing, *names: str) -> None:
    """Call these of the callback's methods, where it has them."""
    for name in names:
        method = find_method(*me.cls, name) if me.cls is not None else None
        if method is not None:
            paper.run_method(me, name, call_at(method[1]))


LIBRARY = Library(drivers=tuple(Driver(_is_callback, _fit, name) for name in _DRIVEN))

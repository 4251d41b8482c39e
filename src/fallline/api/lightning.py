"""Lightning: it runs training_step batch by batch; under automatic optimization it does the rest as well."""

from __future__ import annotations

import ast

from fallline.api.call import Call
from fallline.api.framework import COUNTERS, call_at, framework_backward
from fallline.api.gradients import backward, clip
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import (
    NONE,
    Const,
    Mapping,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    truth_of,
)
from fallline.events import ZeroGrad
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["LIBRARY"]


def _is_module(module: Module, cls: ast.ClassDef) -> bool:
    return any(base.rpartition(".")[2] == "LightningModule" for base in module.bases(cls))


# What Lightning calls before the first batch, in this order.
_BEFORE = ("setup", "on_fit_start", "on_train_start", "on_train_epoch_start")


def _fit(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """trainer.fit(model)."""
    me = paper.instance(module, cls)
    step = find_method(module, cls, "training_step")
    if step is None:
        return
    _configured(paper, module, cls, me)
    manual = truth_of(me.attrs.get("automatic_optimization")) is False
    loader = paper.make("loader", None)
    optimizer = next(
        (t for t in paper.things.values() if t.kind == "optimizer"), None
    ) or paper.make("optimizer", cls)
    me.facts["training"] = True
    for hook in _BEFORE:
        before = find_method(module, cls, hook)
        if before is not None:
            names = [a.arg for a in before[1].args.args][1:]
            first = call_at(before[1])
            first.args = [Unknown(name) for name in names]
            paper.run_method(me, hook, first)
    call = call_at(step[1])
    names = [a.arg for a in step[1].args.args][1:]
    for index in paper.over(loader, step[1]):
        call.args = [Const(index, True) if n in COUNTERS else Tensor(False) for n in names]
        result = paper.settled(paper.run_method(me, "training_step", call) or NONE)
        if not manual:
            _optimize(paper, result, optimizer, call)


def _configured(paper: Paper, module: Module, cls: ast.ClassDef, me: Thing) -> None:
    configure = find_method(module, cls, "configure_optimizers")
    if configure is None:
        return
    paper.run_method(me, "configure_optimizers", call_at(configure[1]))
    for kind, name in (("optimizer", "_optimizers"), ("scheduler", "_schedulers")):
        found: list[Value] = [t for t in paper.things.values() if t.kind == kind]
        if found:
            me.attrs[name] = found[0] if len(found) == 1 else Sequence(found)


def _optimize(paper: Paper, result: Value, optimizer: Thing, call: Call) -> None:
    """Automatic optimization."""
    loss = result
    if isinstance(result, Mapping):
        loss = paper.settled(result.items.get("loss", Unknown()))
    if not isinstance(loss, Tensor):
        loss = Tensor(None, divided=None)
    paper.emit(ZeroGrad(paper.place(call.node), optimizer=optimizer.id))
    framework_backward(paper, loss, call, "lightning")
    emit_step(paper, optimizer, call.node, "framework")


def _optimizers(paper: Paper, module: Thing, call: Call) -> Value:
    return module.attrs.setdefault("_optimizers", Unknown("optimizers"))


def _schedulers(paper: Paper, module: Thing, call: Call) -> Value:
    return module.attrs.setdefault("_schedulers", Unknown("scheduler"))


def _backward(paper: Paper, module: Thing, call: Call) -> Value:
    backward(paper, paper.settled(call.arg(0, "loss") or Unknown()), call)
    return NONE


def _clip(paper: Paper, module: Thing, call: Call) -> Value:
    optimizer, limit = call.arg(0, "optimizer"), call.arg(None, "gradient_clip_val")
    return clip(paper, call, "norm", optimizer, limit)


_HARMLESS = "log log_dict toggle_optimizer untoggle_optimizer save_hyperparameters print"


def _trainer(paper: Paper, module: Thing) -> Value:
    return module.attrs.setdefault("trainer", Unknown("trainer"))


LIBRARY = Library(
    attributes={("model", "trainer"): _trainer},
    inherited={
        ("model", "optimizers"): _optimizers,
        ("model", "lr_schedulers"): _schedulers,
        ("model", "manual_backward"): _backward,
        ("model", "clip_gradients"): _clip,
        **{("model", name): lambda paper, module, call: NONE for name in _HARMLESS.split()},
    },
    drivers=(Driver(_is_module, _fit),),
)

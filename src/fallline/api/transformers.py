"""transformers' Trainer (and trl's): it divides the loss that compute_loss returns itself."""

from __future__ import annotations

import ast

from fallline.api.call import Call
from fallline.api.framework import call_at, framework_backward
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import Sequence, Tensor, Thing, Unknown, Value, truth_of
from fallline.events import Strength, ZeroGrad
from fallline.syntax import Module
from fallline.syntax.classes import base_classes, find_method

__all__ = ["LIBRARY"]


def _is_trainer(module: Module, cls: ast.ClassDef) -> bool:
    """A class made from the Trainer of transformers, or from one of trl's, which are."""
    return any(
        base.startswith(("transformers.", "trl.")) and base.endswith("Trainer")
        for base in module.bases(cls)
    )


def _accelerator(paper: Paper, thing: Thing) -> Value | None:
    if thing.cls is None or not _is_trainer(*thing.cls):
        return None
    # the Trainer divides the loss itself, and tells its Accelerator not to
    made = thing.attrs["accelerator"] = paper.make("accelerator", None, window=1, syncing=True)
    return made


def _creates(paper: Paper, thing: Thing) -> Value | None:
    """`self.create_optimizer_and_scheduler(...)`, whoever calls it: the Trainer puts both into attributes of its own."""
    if thing.cls is None or not _is_trainer(*thing.cls):
        return None
    optimizer = paper.make("optimizer", None, strength=Strength.INFERRED)
    thing.attrs["optimizer"] = optimizer
    thing.attrs["lr_scheduler"] = paper.make("scheduler", None, optimizer=optimizer.id)
    return Unknown()


def _train(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """trainer.train(): compute_loss for every batch; the rest is the Trainer's."""
    compute = next(
        m
        for m in cls.body
        if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) and m.name == "compute_loss"
    )
    if _turns_division_off(module, cls):
        return
    me = Thing("object", "trainer", None, {}, {}, (module, cls))
    given = paper.given(compute)
    call = call_at(compute)
    call.args = [given[a.arg] for a in compute.args.args[1:]]
    optimizer = paper.make("optimizer", cls)
    for _ in paper.over(paper.make("loader", None), compute):
        result = paper.settled(paper.run_method(me, "compute_loss", call) or Unknown())
        if isinstance(result, Sequence) and result.items:
            result = paper.settled(result.items[0])
        loss = result if isinstance(result, Tensor) else Tensor(None, divided=None)
        framework_backward(paper, loss, call_at(compute), "transformers")
        emit_step(paper, optimizer, compute, "framework")
        paper.emit(ZeroGrad(paper.place(compute), optimizer=optimizer.id))


def _train_steps(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """trainer.train() with a `training_step` of the program's own: micro-batch by micro-batch, then a step and a clear."""
    step = find_method(module, cls, "training_step")
    if step is None:
        return
    me = Thing("object", "trainer", None, {}, {}, (module, cls))
    given = paper.given(step[1])
    call = call_at(step[1])
    call.args = [given[a.arg] for a in step[1].args.args[1:]]
    optimizer = paper.make("optimizer", cls)
    for index in paper.over(paper.make("loader", None), step[1]):
        paper.run_method(me, "training_step", call)
        window = paper.count("self.args.gradient_accumulation_steps")
        if index % window == window - 1 and paper.updates.pending:
            # that the Trainer divides by the window is true of its own training_step alone
            emit_step(paper, optimizer, step[1], "direct")
            paper.emit(ZeroGrad(paper.place(step[1]), optimizer=optimizer.id))


def _turns_division_off(module: Module, cls: ast.ClassDef) -> bool:
    """The Trainer divides unless it is given `compute_loss_func`; trl's own trainers give it, and what they do is not seen."""
    if any(base.startswith("trl.") for base in module.bases(cls)):
        return True
    queue, seen = [(module, cls)], set[int]()
    while queue:
        home, here = queue.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if "compute_loss_func" in home.segment(here):
            return True
        queue += base_classes(home, here)
    return False


def _compute_loss(paper: Paper, me: Thing, call: Call) -> Value:
    """`super().compute_loss(...)`: the mean over the batch, as the model's own loss is."""
    model = paper.settled(call.arg(0, "model") or Unknown())
    sets = model.sets if isinstance(model, Thing) else frozenset[str]()
    loss = Tensor(True, sets, reduction="mean")
    if truth_of(call.kwargs.get("return_outputs")):
        return Sequence([loss, Tensor(True)])
    return loss


LIBRARY = Library(
    attributes={
        ("object", "accelerator"): _accelerator,
        ("object", "create_optimizer_and_scheduler"): _creates,
    },
    overridden={"compute_loss": _compute_loss},
    drivers=(
        Driver(_is_trainer, _train, "compute_loss"),
        Driver(_is_trainer, _train_steps, "training_step"),
    ),
)

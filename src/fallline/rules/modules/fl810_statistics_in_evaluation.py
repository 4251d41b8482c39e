"""FL810: running statistics change in eval mode, or stay behind when parameters are averaged or copied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, of_self
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below, walk

__all__ = ["StatisticsInEvaluation"]

_STATISTIC = re.compile(
    r"running_|(^|_)ema(_|$)|moving_|(^|_)(mean|var|std|avg|average)(_|$)|cluster_size|embed_avg|num_batches",
    re.IGNORECASE,
)
_IN_PLACE = frozenset(
    {
        "mul_",
        "add_",
        "lerp_",
        "copy_",
        "sub_",
        "div_",
        "addcmul_",
        "index_add_",
        "scatter_add_",
        "fill_",
    }
)
_UPDATES = frozenset({"lerp_", "mul_", "add_", "copy_"})
_COPIES_ALL = re.compile(
    r"buffers\(|state_dict\(|AveragedModel|update_bn|use_buffers|running_mean|num_batches_tracked"
)
_AVERAGE = re.compile(r"ema|average|avg|mean_teacher|teacher|shadow|momentum|swa", re.IGNORECASE)


class StatisticsInEvaluation(Observed):
    code = "FL810"
    name = "statistics-in-evaluation"
    severity = Severity.WARNING
    what = "Running statistics are updated in eval mode too, or an average of a model leaves out its BatchNorm statistics."
    why = """\
Statistics that move while the model is evaluated make the evaluation part of the training.

They depend on the validation data and on how often it is seen, and the same input gives a different answer the next time.

A copy of a model whose parameters are averaged (EMA) and whose buffers are not keeps the running mean and variance it was made with. Its BatchNorm
normalises with the statistics of an untrained model."""
    instead = """\
Update statistics only under `if self.training:`, and copy buffers with the parameters.

- `F.batch_norm(x, self.running_mean, self.running_var, training=self.training)`
- `for kept, now in zip(average.buffers(), model.buffers()): kept.copy_(now)`
- `torch.optim.swa_utils.AveragedModel(model, use_buffers=True)`"""
    references = ("https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema",)
    tokens = (b"batch_norm", b"register_buffer", b"BatchNorm")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._always_training(module)
        yield from self._moved_in_forward(module)
        yield from self._left_behind(module)

    def _always_training(self, module: Module) -> Iterator[Finding]:
        """`F.batch_norm(x, self.running_mean, self.running_var, training=True)`."""
        for call in module.calls("torch.nn.functional.batch_norm", "torch.batch_norm"):
            mean, training = (
                module.argument(call, 1, "running_mean"),
                module.argument(call, 5, "training"),
            )
            if mean is None or of_self(mean) is None or training is None:
                continue
            if module.constant(training) is True and not _asks_mode(module, call):
                yield self.finding(
                    module.location(call),
                    "This BatchNorm uses and updates its running statistics in eval mode too. Pass `training=self.training`",
                    # a BatchNorm made again to do so means it
                    severity=Severity.INFO if _is_batch_norm(module, call) else None,
                )

    def _moved_in_forward(self, module: Module) -> Iterator[Finding]:
        """A forward that updates a buffer, of a class that never asks for its mode, or only asks further down."""
        for cls in module.all(ast.ClassDef) if module.source.spells("register_buffer") else ():
            if not module.is_module_class(cls):
                continue
            buffers = set(_buffers(module, cls))
            asked = [n for n in below(cls, ast.Attribute) if n.attr == "training"]
            for method in cls.body if buffers else ():
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    place = next((n for n in walk(method) if _moves(n, buffers)), None)
                    if place is None or not all(_too_late(method, place, n) for n in asked):
                        continue
                    if not _chosen(method) and _uses(method, buffers):
                        yield self.finding(
                            module.location(place),
                            f"`{module.segment(place)[:60]}` changes a running statistic on every call, in eval mode too, so an evaluation changes the model. "
                            "Update it only `if self.training`",
                        )

    def _left_behind(self, module: Module) -> Iterator[Finding]:
        """An average over `zip(a.parameters(), b.parameters())` in a file that has BatchNorm and copies no buffers."""
        if "BatchNorm" not in module.source.text or _COPIES_ALL.search(module.source.text):
            return
        for loop in module.all(ast.For):
            match loop.iter:
                case ast.Call(ast.Name("zip"), [ast.Call() as first, ast.Call() as second]):
                    pass
                case _:
                    continue
            sides = [c for c in (first, second) if last_name(c) == "parameters"]
            named = (module.function(loop), module.class_(loop))
            text = " ".join([module.segment(loop.iter), *(getattr(n, "name", "") for n in named)])
            if any(_called_beside(module, side) for side in sides):
                continue  # a key encoder runs in train mode itself, and so keeps statistics of its own
            if len(sides) == 2 and _AVERAGE.search(text) and any(_updates(n) for n in walk(loop)):
                yield self.finding(
                    module.location(loop),
                    "Only the parameters are averaged: the running mean and variance of BatchNorm stay as they were in the copy. Copy the buffers too: "
                    "`for kept, now in zip(average.buffers(), model.buffers()): kept.copy_(now)`",
                    # a transformer has no running statistics, and a copy that runs in train mode has its own
                    severity=Severity.INFO,
                )

    def says(self, entry: dict[str, Any]) -> str:
        return f"The running statistic `{entry['buffer']}` changed while the model was in eval mode, so this evaluation changed the model. Update it only in train mode"

    wrong = (
        """\
import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, training=True)  # FL810
""",
        """\
import torch
from torch import nn


class Centre(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))

    def forward(self, x):
        self.running_mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)  # FL810
        return x - self.running_mean
""",
        """\
import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
ema_model = copy.deepcopy(model)


@torch.no_grad()
def update_ema(decay=0.999):
    for kept, now in zip(ema_model.parameters(), model.parameters()):  # FL810
        kept.mul_(decay).add_(now, alpha=1 - decay)
""",
    )
    right = (
        """\
import copy

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, training=self.training)


class Centre(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))

    def forward(self, x):
        if self.training:
            self.running_mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.running_mean


model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
ema_model = copy.deepcopy(model)


@torch.no_grad()
def update_ema(decay=0.999):
    for kept, now in zip(ema_model.parameters(), model.parameters()):
        kept.mul_(decay).add_(now, alpha=1 - decay)
    for kept, now in zip(ema_model.buffers(), model.buffers()):
        kept.copy_(now)
""",
    )


def _is_batch_norm(module: Module, call: ast.Call) -> bool:
    """In a class that derives from torch's BatchNorm."""
    cls = module.class_(call)
    return cls is not None and any("BatchNorm" in base for base in module.bases(cls))


def _called_beside(module: Module, parameters: ast.Call) -> bool:
    """`self.target.parameters()` in a class that also calls `self.target(x)` and never puts it into eval mode, as in MoCo and BYOL."""
    cls = module.class_(parameters)
    held = parameters.func.value if isinstance(parameters.func, ast.Attribute) else None
    if cls is None or held is None:
        return False
    for name in _held(module, cls, held):
        if not re.search(r"(?i)_k$|key|target|momentum|ema|teacher", name):
            continue
        if re.search(rf"self\.{name}\.eval\(", module.source.text):
            continue
        if any(of_self(n.func) == name for n in below(cls, ast.Call)):
            return True
    return False


def _held(module: Module, cls: ast.ClassDef, node: ast.expr) -> list[str]:
    """`target` of `self.target`, or what the class hands to its own helper: `self._update(self.online, self.target)`."""
    name, function = of_self(node), module.function(node)
    if name is not None:
        return [name]
    if not isinstance(node, ast.Name) or function is None:
        return []
    given = [
        Module.argument(call, place, node.id)
        for place, argument in enumerate(
            a for a in function.args.args if a.arg not in {"self", "cls"}
        )
        if argument.arg == node.id
        for call in below(cls, ast.Call)
        if last_name(call) == function.name
    ]
    return [held for value in given if (held := of_self(value)) is not None]


def _asks_mode(module: Module, call: ast.Call) -> bool:
    """Under a test of the mode."""
    ups = (up for up in module.parents(call) if isinstance(up, ast.If | ast.IfExp))
    return any("training" in module.segment(up.test) for up in ups)


def _buffers(module: Module, cls: ast.ClassDef) -> Iterator[str]:
    """The statistics that a class registers as buffers."""
    for node in walk(cls):
        match node:
            case ast.Call(
                ast.Attribute(ast.Name("self"), "register_buffer"),
                [ast.Constant(str() as name), *_],
            ):
                if _STATISTIC.search(name):
                    yield name


def _moves(node: ast.AST, buffers: set[str]) -> bool:
    """`self.running_mean.mul_(...)`, `self.running_mean += ...`, `self.running_mean = 0.9 * self.running_mean + ...`."""
    match node:
        case ast.Call(ast.Attribute(held, method)) if method in _IN_PLACE:
            while isinstance(held, ast.Attribute) and held.attr == "data":
                held = held.value
            return of_self(held) in buffers
        case ast.AugAssign(target):
            return of_self(target) in buffers
        case ast.Assign([target], value) if of_self(target) in buffers:
            # `self.running_mean = self.running_mean.half()` is a cast
            mixed = bool(below(value, ast.BinOp))
            return mixed and any(of_self(n) == of_self(target) for n in ast.walk(value))
    return False


def _too_late(method: ast.FunctionDef, place: ast.AST, asked: ast.Attribute) -> bool:
    """`self.training` is read for the first time below a statement that every call reaches."""
    reached = place in method.body or any(
        isinstance(s, ast.Expr) and s.value is place for s in method.body
    )
    inside = any(n is asked for n in walk(method))
    return reached and inside and asked.lineno > getattr(place, "end_lineno", 0)


def _uses(method: ast.FunctionDef, buffers: set[str]) -> bool:
    """The output depends on a statistic: it is read outside the statements that move it."""
    moving = {n for s in walk(method) if _moves(s, buffers) for n in ast.walk(s)}
    return any(of_self(n) in buffers for n in below(method, ast.Attribute) if n not in moving)


def _chosen(method: ast.FunctionDef) -> bool:
    """The caller decides: `forward(x, update=False)`."""
    names = [a.arg for a in [*method.args.args, *method.args.kwonlyargs]]
    return any(re.search(r"update|train|freeze|eval|mode|momentum", n) for n in names)


def _updates(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(_, method)) if method in _UPDATES:
            return True
        case ast.Assign([ast.Attribute(_, "data")], ast.BinOp()):
            return True
    return False

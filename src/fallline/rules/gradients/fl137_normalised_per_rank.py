"""FL137: a loss or a gradient is divided by the number of ranks although the reduction does it, or is not where it must be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in
from fallline.flow.losses import trained_names
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name

__all__ = ["NormalisedPerRank"]

_RANKS = re.compile(
    r"^(_?world_?size|get_world_size|num_replicas|num_processes|dp_world_size|nprocs?)$",
    re.IGNORECASE,
)
_LOSS = re.compile(r"loss|(^|_)cost(_|$)", re.IGNORECASE)
# Of a reduction that sums, of ranks that share one sample, and of gathers whose backward sums: there a division is right.
_OTHER_SUMS = re.compile(
    r"distributed\.nn\b|GatherLayer|AllGather|all_gather_with_grad|tensor_(model_)?parallel|sequence_parallel|context_parallel|"
    r"ReduceOp\.SUM\b.*grad|set_gradient_divide_factor|gradient_divide|register_comm_hook|no_sync_average|SumReduc|reduce_op"
)
_AVERAGES = re.compile(
    r"DistributedDataParallel|\bDDP\(|FullyShardedDataParallel|\bFSDP\(|fully_shard\(|DistributedType|Trainer\b|Accelerator\("
)
_REDUCES = frozenset(
    {"all_reduce", "reduce", "all_reduce_", "all_gather", "reduce_tensor", "reduce_mean", "gather"}
)
_SIZES = re.compile(r"world_?size|num_replicas|num_processes|div|mean|AVG|average|/", re.IGNORECASE)


class NormalisedPerRank(Rule):
    code = "FL137"
    name = "normalised-per-rank"
    severity = Severity.ERROR
    what = "A loss or gradient is divided by the number of ranks although DDP and FSDP already average over them, or is summed over ranks and never divided."
    why = (
        "DDP and FSDP divide the summed gradients by the number of ranks. A second division makes every gradient that many times too small, so SGD's "
        "steps shrink with each machine that is added, and clipping and weight decay weigh differently. A sum that nobody divides is wrong the other way round."
    )
    instead = "Let DDP average: call `loss.backward()` on the mean loss of this rank. If you reduce gradients by hand, use `op=dist.ReduceOp.AVG`. Divide only the copy of the loss that is printed."
    references = ("https://docs.pytorch.org/docs/stable/notes/ddp.html",)
    tokens = (b"world_size", b"num_replicas", b"num_processes", b"all_reduce")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if _OTHER_SUMS.search(module.source.text):
            return
        by_hand = [c for c in _reduced_gradients(module)]
        if not by_hand:
            yield from self._losses(module)
            yield from self._gradients(module)
        yield from self._sums(module, by_hand)

    def _losses(self, module: Module) -> Iterator[Finding]:
        for statement, divided in _divided(module):
            name = _target(statement) or _walked_back(module, divided)
            if name is None or not _LOSS.search(name) or _was_reduced(module, statement, name):
                continue
            scope = module.scope(statement)
            trains = trained_names(module, scope).get(name, 0) > statement.lineno
            trains = trains or isinstance(statement, ast.Expr | ast.Return)
            if not trains and not _returns_loss(module, statement, name):
                continue
            seen = trains and _AVERAGES.search(module.source.text) is not None
            yield self.finding(
                module.location(divided),
                f"`{name}` is divided by the number of ranks before its backward, and DDP and FSDP divide the gradients by it again, so they are that many "
                "times too small. Leave out this division",
                severity=None if seen else Severity.WARNING,
            )

    def _gradients(self, module: Module) -> Iterator[Finding]:
        """`p.grad /= world_size` of a model that DDP already averages."""
        for node in [*module.all(ast.AugAssign), *module.all(ast.Call)]:
            match node:
                case ast.AugAssign(target, ast.Div(), value) if _is_gradient(target):
                    pass
                case ast.Call(ast.Attribute(target, "div_"), [value, *_]) if _is_gradient(target):
                    pass
                case _:
                    continue
            averaged = _AVERAGES.search(module.source.text) is not None
            if averaged and _is_ranks(module, value) and _over_whole_model(module, node):
                yield self.finding(
                    module.location(node),
                    "The gradient is divided by the number of ranks after DDP or FSDP has already averaged it, so it is that many times too small. "
                    "Leave out this division",
                    severity=Severity.WARNING,  # which parameters DDP holds is not seen here
                )

    def _sums(self, module: Module, reduced: list[ast.Call]) -> Iterator[Finding]:
        """Gradients that are summed over all ranks by hand, in a function that divides nothing."""
        for call in reduced:
            function = module.function(call)
            if any(k.arg in {"group", "async_op"} for k in call.keywords) or function is None:
                continue
            text = module.segment(function) if function is not None else module.source.text
            body = re.sub(r"#.*|(?s:\"\"\".*?\"\"\")", "", text)
            if not _SIZES.search(body.replace("world_size() == 1", "")) and not _divides_loss(
                module
            ):
                yield self.finding(
                    module.location(call),
                    "The gradients of all ranks are summed and never divided, so they are too large by a factor of the number of ranks. "
                    "Use `op=dist.ReduceOp.AVG`, or divide by `dist.get_world_size()`",
                )

    wrong = (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, loader, optimizer):
    model = DistributedDataParallel(model)
    world_size = dist.get_world_size()
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss = loss / world_size  # FL137
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        """\
import torch.distributed as dist
from torch import nn


def contrastive_loss(similarity, labels, temperature=0.1):
    world_size = dist.get_world_size()
    similarity = similarity / temperature
    loss = nn.CrossEntropyLoss()(similarity, labels) / world_size  # FL137
    return loss
""",
        """\
import torch.distributed as dist


def synchronise(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)  # FL137
""",
    )
    right = (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, loader, optimizer):
    model = DistributedDataParallel(model)
    world_size = dist.get_world_size()
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        shown /= world_size
        reduced_loss = shown / world_size
        print(shown, reduced_loss)
""",
        """\
import torch.distributed as dist


def average(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= size


def also(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
""",
    )


def _divided(module: Module) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Statements that divide what they bind by the number of ranks, each with the division."""
    for change in module.all(ast.AugAssign):
        if isinstance(change.op, ast.Div) and _is_ranks(module, change.value):
            yield change, change
    for statement in module.all(ast.Assign):
        match statement.value:
            case ast.BinOp(left, ast.Div(), right) as divided if _is_ranks(module, right):
                if not _mentions_ranks(module, left):
                    yield statement, divided
    for division in module.all(ast.BinOp):
        if isinstance(division.op, ast.Div) and _walked_back(module, division) is not None:
            if _is_ranks(module, division.right):
                yield module.statement(division), division


def _walked_back(module: Module, divided: ast.AST) -> str | None:
    """`loss` of `(loss / world_size).backward()` and of `scaler.scale(loss / world_size).backward()`."""
    match divided, module.parent(divided):
        case ast.BinOp(ast.Name(name)), ast.Attribute(attr="backward"):
            return name
        case ast.BinOp(ast.Name(name)), ast.Call(ast.Attribute(attr="scale")):
            return name
        case ast.BinOp(ast.Name(name)), ast.Return():
            # what Lightning and the Trainer walk back
            home = module.function(divided)
            return name if getattr(home, "name", "") in {"training_step", "compute_loss"} else None
    return None


def _target(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign([ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
            return name
    return None


def _is_ranks(module: Module, node: ast.expr) -> bool:
    """`world_size`, `dist.get_world_size()`, `self.world_size`, `float(size)` of one of them."""
    match node:
        case ast.Call(ast.Name("float" | "int"), [inner]):
            return _is_ranks(module, inner)
        case ast.Name() if not _RANKS.match(node.id):
            made = values_of(module).definition(node)
            return isinstance(made, ast.Call) and last_name(made) == "get_world_size"
    return isinstance(node, ast.Name | ast.Attribute | ast.Call) and bool(
        _RANKS.match(last_name(node))
    )


def _mentions_ranks(module: Module, node: ast.expr) -> bool:
    return any(_is_ranks(module, n) for n in below(node, ast.expr))


def _was_reduced(module: Module, statement: ast.stmt, name: str) -> bool:
    """A collective in this function has added this value up over the ranks, or it is a copy for the log."""
    scope = module.scope(statement)
    for call in module.all(ast.Call):
        if (
            module.scope(call) is scope
            and last_name(call) in _REDUCES
            and call.lineno <= statement.lineno + 1
        ):
            if name in names_in(*call.args) or name in names_in(call.func):
                return True
    value = statement.value if isinstance(statement, ast.Assign | ast.AugAssign) else None
    calls = [n for n in below(value, ast.Call)] if value is not None else []
    return any(last_name(c) in _REDUCES or last_name(c) in {"item", "detach"} for c in calls)


def _returns_loss(module: Module, statement: ast.stmt, name: str) -> bool:
    """A function that computes a loss for someone else's backward, and whose training loop is not here."""
    function = module.function(statement)
    if function is None or not _LOSS.search(getattr(function, "name", "")):
        return False
    if re.search(
        r"reduce|log|sync|gather|mean|average|eval|valid|test", getattr(function, "name", "")
    ):
        return False
    returns = [
        r for r in module.all(ast.Return) if module.function(r) is function and r.value is not None
    ]
    return any(is_name(r.value, name) for r in returns)


def _is_gradient(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(_, "grad") | ast.Attribute(ast.Attribute(_, "grad"), "data"):
            return True
    return False


def _over_whole_model(module: Module, node: ast.AST) -> bool:
    """In a loop over `model.parameters()`; the groups of an optimizer may hold parameters that DDP does not."""
    loop = module.enclosing(node, ast.For)
    calls = [n for n in below(loop.iter, ast.Call)] if loop is not None else []
    return any(last_name(c) in {"parameters", "named_parameters"} for c in calls)


def _reduced_gradients(module: Module) -> Iterator[ast.Call]:
    for call in module.all(ast.Call):
        if last_name(call) == "all_reduce" and call.args and _is_gradient(call.args[0]):
            yield call


def _divides_loss(module: Module) -> bool:
    return any(_LOSS.search(_target(s) or "") for s, _ in _divided(module)) or any(
        n.arg == "reduction" for n in below(module.tree, ast.keyword)
    )

"""FL136: a loss, or a term of it, that cannot reach the parameters it is meant to train."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in, same
from fallline.flow.gradients import takes_no_gradient
from fallline.flow.losses import differentiated, loss_calls, trained_names
from fallline.flow.makers import SHAPE_OPS, class_of
from fallline.flow.modules import function_called
from fallline.flow.networks import graph_of
from fallline.flow.recording import turns_off
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.rules.gradients._leaf_losses import (
    SAYS_LOSS,
    asked_to_require,
    is_leaf_copy,
    only_numbers,
    reduced,
    requires_grad_set,
    returned_copies,
)
from fallline.syntax import Module
from fallline.syntax.nodes import below, names_read, walk
from fallline.syntax.once import once

__all__ = ["LossWithoutGraph"]

_LOSSES = (
    *("mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss", "huber_loss"),
    *("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "kl_div", "KLDivLoss"),
    *("binary_cross_entropy", "BCELoss", "binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
)
_CUTS = frozenset({"detach", "item", "tolist", "numpy"})
_MAKES_OUTPUT = frozenset({"empty", "empty_like", "zeros", "zeros_like", "new_empty"})
# Kernels that are meant to run without a gradient, or whose gradient is written next to them.
_NO_GRADIENT_MEANT = re.compile(
    r"^_|kernel|fwd|bwd|forward|backward|grad|infer|quant|cache|decode|gen|adam|optim|sampl|sort|topk|index|mask|bench|test|ref"
    r"|pack|scatter|gather|permute|count|histogram|copy|cast|fp8|int8|eval",
    re.IGNORECASE,
)
_REGISTERS = (b"custom_op", b"triton_op", b"register_autograd", b"register_backward")
_FIXED_FEATURES = re.compile(r"(?i)vgg|feature_extractor|perceptual|lpips")
_METRIC = re.compile(r"\w*Metric")


class LossWithoutGraph(Observed):
    code = "FL136"
    name = "loss-without-graph"
    severity = Severity.ERROR
    what = "A loss, or a term of it, is cut off from the model on its way: by `.data`, `detach()`, `item()`, `no_grad`, a copy with `torch.tensor`, a metric or a raw kernel."
    why = """\
The gradient stops where the graph was cut, so the model does not learn from this term.

Where nothing of the loss has a graph, backward raises an error. Setting `requires_grad` on the loss silences that error and changes nothing else: backward then
gives the loss itself a gradient of 1, and no parameter ever moves. Where other terms still have a graph there is no error at all: the term counts in the
printed loss and trains nothing."""
    instead = """\
Keep the tensors as they come out of the model, up to the backward.

- Never set `requires_grad` on a loss; find where its graph was cut.
- Join tensors with `torch.stack` or `sum`, not with `torch.tensor`.
- Give `detach()`ed copies only to logs, metrics and targets."""
    references = ("https://docs.pytorch.org/docs/stable/notes/autograd.html",)
    tokens = (b"backward", b"Metric", b"triton", b"requires_grad")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._leaves(module)
        yield from self._given_back(module)
        yield from self._only_numbers(module)
        yield from self._cut_terms(module)
        yield from self._metrics(module)
        yield from self._kernels(module)

    def says(self, entry: dict[str, Any]) -> str:
        return (
            "This loss has no graph: its requires_grad was set by hand, so backward reaches no parameter and nothing is learned. "
            "Find where it was cut off from the model (`.data`, `detach()`, `item()`, `torch.tensor`)"
        )

    def _leaves(self, module: Module) -> Iterator[Finding]:
        """A loss whose requires_grad is set by hand before its backward."""
        for call in module.method_calls("backward"):
            match call.func:
                case ast.Attribute(ast.Name(name) as loss):
                    pass
                case _:
                    continue
            made = reduced(module, loss)
            if isinstance(made, ast.Call) and is_leaf_copy(module, made):
                yield self.finding(
                    module.location(made),
                    f"`{name}` is a copy without a graph, so its backward reaches no parameter and nothing is learned. Use the loss itself instead of a copy",
                )
                continue
            for statement in requires_grad_set(module, name, call):
                sure = isinstance(made, ast.expr) and _has_no_graph(module, made)
                needless = isinstance(made, ast.expr) and graph_of(module, made) is not None
                yield self.finding(
                    module.location(statement),
                    f"Setting requires_grad on `{name}` gives it no graph: if it has none, backward reaches no parameter and nothing is learned. "
                    "Remove this line, and find where the loss was cut off from the model",
                    severity=None if sure else Severity.INFO if needless else Severity.WARNING,
                )

    def _given_back(self, module: Module) -> Iterator[Finding]:
        """A loss that a function returns as a leaf: whoever calls backward on it is out of view."""
        for at, name, copied in returned_copies(module):
            text = (
                f"This is a copy of `{name}` without its graph: a backward on it reaches no parameter and nothing is learned. Return the loss itself"
                if copied
                else f"Setting requires_grad on `{name}` gives it no graph: if it has none, backward reaches no parameter and nothing is learned. "
                "Remove this line, and find where the loss was cut off from the model"
            )
            severity = None if copied else Severity.WARNING
            yield self.finding(module.location(at), text, severity=severity)

    def _only_numbers(self, module: Module) -> Iterator[Finding]:
        """A parameter of an optimizer that the loss knows only as a number."""
        for cut, name in only_numbers(module):
            yield self.finding(
                module.location(cut),
                f"`{name}` is in the optimizer, but only its number is computed with, so no gradient reaches it and it never changes. Use the tensor itself",
            )

    def _cut_terms(self, module: Module) -> Iterator[Finding]:
        """Terms of a loss that backward starts from, and whose graph is cut in view."""
        if not module.method_calls("backward"):
            return
        assigned: list[ast.Assign | ast.AugAssign] = [*module.all(ast.Assign)]
        for statement in assigned + module.all(ast.AugAssign):
            trained = _trained_by(module, statement)
            if not trained or not differentiated(module, statement.value):
                continue
            if _made_to_require(module, statement, trained):
                continue  # which is what is reported
            for term in _terms(statement.value):
                cut = _cut_loss(module, term) or _cut_inputs(module, term)
                if cut is not None and not (
                    _also_whole(statement, cut) or _whole_otherwise(module, statement, cut)
                ):
                    yield self.finding(
                        module.location(term),
                        f"`{module.segment(cut)}` has no graph, so this term of `{trained}` trains nothing: it only changes the number that is printed. "
                        "Use the tensor as it comes from the model",
                    )

    def _metrics(self, module: Module) -> Iterator[Finding]:
        """A loss class that returns what a metric of the project computes, where that detaches its result."""
        for call in module.all(ast.Call):
            if not isinstance(call.func, ast.Call) or not _METRIC.fullmatch(last_name(call.func)):
                continue
            cls, function = module.class_(call), module.function(call)
            if cls is None or not cls.name.endswith("Loss") or function is None:
                continue
            metric = class_of(module, call.func.func, module.resolve(call.func.func))
            if metric is not None and _detaches(*metric):
                yield self.finding(
                    module.location(call),
                    f"{metric[1].name} detaches what it returns, so this loss has no graph and trains nothing. Call the function that computes the value",
                )

    def _kernels(self, module: Module) -> Iterator[Finding]:
        """A function that fills an empty tensor with a Triton kernel: autograd sees neither its inputs nor its result."""
        if not any(m == "triton" or m.startswith("triton.") for m in module.imports.values()):
            return
        if any(word in module.source.text.encode() for word in _REGISTERS):
            return
        inside = {last_name(c) for c in module.all(ast.Call) if _in_function_class(module, c)}
        for function in module.functions.values():
            if module.class_(function) is not None or not isinstance(function, ast.FunctionDef):
                continue
            if function.name in inside or _NO_GRADIENT_MEANT.search(function.name):
                continue
            if _fills_with_kernel(module, function):
                yield self.finding(
                    module.location(function),
                    f"`{function.name}` writes its result with a Triton kernel into an empty tensor, which autograd does not see: no gradient passes through it. "
                    "If it is trained through, wrap it in a torch.autograd.Function with a backward",
                    severity=Severity.INFO,  # many kernels are only for inference
                )

    wrong = (
        """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(4):
    inputs, targets = torch.randn(16, 8), torch.randint(0, 2, (16,))
    predicted = model(inputs).detach()
    loss = nn.functional.cross_entropy(predicted, targets)
    loss.requires_grad = True  # FL136
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(4):
    losses = []
    for part in range(3):
        inputs, targets = torch.randn(16, 8), torch.randint(0, 2, (16,))
        losses.append(nn.functional.cross_entropy(model(inputs), targets))
    loss = torch.tensor(losses, requires_grad=True).mean()  # FL136
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 2))
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=16):
    outputs = model(inputs)
    penalty = outputs.pow(2).mean()
    loss = nn.functional.mse_loss(outputs, targets) + 0.1 * penalty.item()  # FL136
    smooth = nn.functional.l1_loss(outputs.data, targets)  # FL136
    loss = loss + smooth
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn

model, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 2))
total = 0.0
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=16):
    with torch.no_grad():
        wanted = teacher(inputs)
    outputs = model(inputs)
    loss = nn.functional.mse_loss(outputs, targets) + nn.functional.mse_loss(wanted, outputs)
    loss = loss / loss.detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    error = nn.functional.l1_loss(outputs.detach(), targets)
    print(total, error)
""",
        """\
import torch

# An attack asks for the gradient of its input.
model = torch.nn.Linear(8, 2)
inputs = torch.randn(4, 8)
inputs.requires_grad = True
loss = model(inputs).sum()
loss.backward()
print(inputs.grad.sign())
""",
    )


def _has_no_graph(module: Module, made: ast.expr) -> bool:
    given = module.argument(made, 0, "input") if isinstance(made, ast.Call) else None
    known = given is not None and id(made) in _losses_of(module)
    return takes_no_gradient(module, made) or (known and _is_cut(module, given))  # type: ignore[arg-type]


@once
def _losses_of(module: Module) -> set[int]:
    return {id(call) for call, _ in loss_calls(module, *_LOSSES)}


def _trained_by(module: Module, statement: ast.Assign | ast.AugAssign) -> str | None:
    """The name that a statement binds, if its value reaches a backward below it in the same function and loop."""
    match statement:
        case ast.Assign([ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
            trained = trained_names(module, module.scope(statement))
            return name if trained.get(name, 0) > statement.lineno else None
    return None


def _made_to_require(module: Module, statement: ast.stmt, name: str) -> bool:
    """`loss.requires_grad = True` follows in the same function."""
    return bool(asked_to_require(module, name, module.scope(statement)))


def _whole_otherwise(module: Module, statement: ast.Assign | ast.AugAssign, cut: ast.expr) -> bool:
    """`if train: total += loss` and `else: total += loss.item()`: only the number is wanted here."""
    up = module.parent(statement)
    if not isinstance(up, ast.If) or not isinstance(statement, ast.AugAssign):
        return False
    whole = next(iter(below(cut, ast.Name)), None)
    others = up.orelse if statement in up.body else up.body
    return any(
        isinstance(s, ast.AugAssign) and same(s.target, statement.target) and same(s.value, whole)
        for s in others
        if whole is not None
    )


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum, without their weights."""
    match value:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            yield from _terms(left)
            yield from _terms(right)
        case ast.BinOp(left, ast.Mult(), right):
            yield from (side for side in (left, right) if isinstance(side, ast.Call))
        case _:
            yield value


def _cut_loss(module: Module, term: ast.expr) -> ast.expr | None:
    """`penalty.item()`, `kl.detach()` in a sum: the loss that was cut."""
    up = module.parent(term)
    while isinstance(up, ast.BinOp) and isinstance(up.op, ast.Mult):
        up = module.parent(up)
    match up:
        case ast.AugAssign() | ast.BinOp(op=ast.Add()):
            pass
        case _:
            return None
    match term:
        case ast.Call(ast.Attribute(ast.Name(name), method)) if method in _CUTS:
            return term if SAYS_LOSS.search(name) else None
        case ast.Attribute(ast.Name(name), "data"):
            return term if SAYS_LOSS.search(name) else None
    return None


def _cut_inputs(module: Module, term: ast.expr) -> ast.expr | None:
    """A loss of predictions that were cut and of targets that are data: what was cut."""
    if not isinstance(term, ast.Call):
        return None
    if id(term) not in _losses_of(module) and not _CALLED_LOSS.search(last_name(term.func)):
        return None
    given = module.argument(term, 0, "input", "inputs")
    target = module.argument(term, 1, "target", "targets")
    if given is None or target is None or not _is_cut(module, given):
        return None
    return given if _is_data(module, target) or _says_data(module, target) else None


# Losses by what they are called: a function of the project, an argument, an attribute.
_CALLED_LOSS = re.compile(r"(?i)^criterion$|^loss_?(fn|func|fct|function)$|cross_entropy$")
_CALLED_DATA = re.compile(
    r"(?i)^(y|targets?|labels?|lbls?|gts?|y_true)$|_(targets?|labels?|lbls?)$"
)


def _says_data(module: Module, node: ast.expr) -> bool:
    """Labels by what they are called, that no network of this function computed."""
    match node:
        case ast.Subscript(inner) | ast.Call(ast.Attribute(inner)):
            return _says_data(module, inner)
        case ast.Name(name) | ast.Attribute(attr=name):
            return _CALLED_DATA.search(name) is not None and graph_of(module, node) is None
    return False


_PACKS = frozenset({"pack_padded_sequence", "pack_sequence"})


def _is_cut(module: Module, node: ast.expr) -> bool:
    made = values_of(module).origin(node)
    match made:
        case ast.Attribute(packed, "data") if last_name(values_of(module).origin(packed)) in _PACKS:
            return False  # a field of what packs sequences, with its graph
        case ast.Attribute(attr="data") | ast.Call(ast.Attribute(attr="detach" | "argmax")):
            return True
        case ast.Call(ast.Attribute(inner, method)) if method in SHAPE_OPS:
            return _is_cut(module, inner)
        case ast.Name() as name if _is_index(module, name):
            return True
        case ast.Subscript(ast.Call() as call, ast.Constant(1)) | ast.Attribute(
            ast.Call() as call, "indices"
        ):
            return last_name(call) in _WITH_INDICES and bool(call.args or call.keywords)
        case ast.Call(func, [inner, *_]) if _only_hands_on(module, func):
            return _is_cut(module, inner)
    return False


_WITH_INDICES = frozenset({"max", "min", "topk", "sort", "median", "mode"})


def _is_index(module: Module, name: ast.Name) -> bool:
    """`predicted` of `_, predicted = torch.max(outputs, 1)`: where the largest is, which has no gradient."""
    part = values_of(module).unpacked(name)
    return part is not None and part[1] == 1 and last_name(part[0]) in _WITH_INDICES


def _only_hands_on(module: Module, func: ast.expr) -> bool:
    """`Variable(x)`, a helper of the project, a network of fixed features: nothing in it learns from what it is given."""
    name = last_name(func)
    if name == "Variable" or _FIXED_FEATURES.search(name):
        return True
    return function_called(module, func) is not None


def _is_data(module: Module, node: ast.expr) -> bool:
    """What a loop over data gives, or what surely has no gradient."""
    match node:
        case ast.Call(
            ast.Attribute(
                inner, "to" | "cuda" | "float" | "long" | "view" | "unsqueeze" | "squeeze"
            )
        ):
            return _is_data(module, inner)
        case ast.Name(name):
            bound = module.bindings(name, module.scope(node))
            if bound and all(_by_loop(module, b) for b in bound):
                return True
    return takes_no_gradient(module, node)


def _by_loop(module: Module, binding: ast.AST) -> bool:
    up = module.parent(binding)
    while isinstance(up, ast.Tuple):
        up = module.parent(up)
    return isinstance(up, ast.For)


def _also_whole(statement: ast.stmt, cut: ast.expr) -> bool:
    """`a - a.detach() + b`: the same value is there with its graph, and only its number is replaced."""
    match cut:
        case ast.Call(ast.Attribute(base)):
            names = names_in(base)
        case _:
            names = names_in(cut)
    if len([n for n in names_read(statement) if n.id in names]) > len(names):
        return True
    return isinstance(statement, ast.AugAssign) and bool(names & names_in(statement.target))


def _detaches(home: Module, cls: ast.ClassDef, depth: int = 4) -> bool:
    """A class whose own methods, or those of a class it derives from, detach."""
    if any(last_name(n) == "detach" for n in below(cls, ast.Call)):
        return True
    above = (class_of(home, base, home.resolve(base)) for base in cls.bases) if depth else ()
    return any(_detaches(*parent, depth - 1) for parent in above if parent is not None)


def _in_function_class(module: Module, node: ast.AST) -> bool:
    cls = module.class_(node)
    return cls is not None and module.is_function_class(cls)


def _fills_with_kernel(module: Module, function: ast.FunctionDef) -> bool:
    """`out = torch.empty_like(x); kernel[grid](x, out); return out`."""
    made: set[str] = set()
    given: set[str] = set()
    back: set[str] = set()
    for node in walk(function):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if (
                last_name(call) in _MAKES_OUTPUT
            ):
                made.add(name)
            case ast.Call(ast.Subscript(ast.Name(kernel))) if _is_kernel(module, kernel):
                given |= {a.id for a in node.args if isinstance(a, ast.Name)}
            case ast.Return(ast.Name(name)):
                back.add(name)
            case ast.With() if turns_off(node):
                return False
    arguments = {a.arg for a in function.args.args}
    return bool(made & given & back) and bool(arguments & given)


def _is_kernel(module: Module, name: str) -> bool:
    kernel = module.functions.get(name)
    marked = kernel.decorator_list if kernel is not None else []
    return any("triton" in (module.segment(d)) and "jit" in module.segment(d) for d in marked)

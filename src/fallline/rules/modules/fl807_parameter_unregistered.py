"""FL807 parameter-unregistered: a plain tensor with requires_grad as a module attribute."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import of_self, returned
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import methods_of, walk

_PLAIN = "a plain tensor with requires_grad"
_FACTORIES = frozenset(
    f"torch.{f}"
    for f in [
        "tensor",
        "as_tensor",
        "randn",
        "rand",
        "zeros",
        "ones",
        "full",
        "empty",
        "eye",
        "linspace",
        "arange",
        "normal",
        "randn_like",
        "rand_like",
        "zeros_like",
        "ones_like",
        "from_numpy",
        "FloatTensor",
        "Tensor",
    ]
)
_PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_MOVES = frozenset({"to", "cuda", "half", "float", "double", "bfloat16", "type"})
_BUILDERS = re.compile(r"__init__$|^_?(init|reset|build|setup|make|create)")

# A table that nobody trains is only not moved and not saved, and it is made the same way again.
_FIXED = re.compile(r"requires_grad\s*=\s*False")


class ParameterUnregistered(Rule):
    code = "FL807"
    name = "parameter-unregistered"
    severity = Severity.WARNING
    what = "A module keeps a trainable tensor as a plain attribute instead of an `nn.Parameter`."
    why = (
        "Only `nn.Parameter` is registered. A plain tensor with `requires_grad=True`, or the result of `nn.Parameter(...).cuda()` (which is a "
        "new tensor), is not in `parameters()`: the optimizer never trains it, `to(device)` never moves it, `state_dict()` never saves it."
    )
    instead = "`self.weight = nn.Parameter(torch.randn(...))`; move the whole module with `.to(device)` afterwards."
    fix_safety = (
        "Wraps the tensor in nn.Parameter; it then also appears in parameters() and state_dict()."
    )
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html",
    )
    tokens = (b"requires_grad", b"Parameter(")

    wrong = (
        """\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.ones(size, requires_grad=True)  # FL807

    def forward(self, x):
        return x * self.weight
""",
        """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query = nn.Parameter(torch.randn(size)).cuda()  # FL807

    def forward(self, x):
        return x @ self.query
""",
        """\
import torch
from torch import nn


class Bias(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = torch.zeros(size).requires_grad_()  # FL807

    def forward(self, x):
        return x + self.bias
""",
    )
    right = (
        """\
import torch
from torch import nn


# The first state of a recurrence: made anew for every sequence.
class Decoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.cell = nn.LSTMCell(size, size)

    def init_state(self, batch):
        self.hidden = torch.zeros(batch, self.size, requires_grad=True)
        self.memory = torch.zeros(batch, self.size, requires_grad=True)

    def forward(self, x):
        self.init_state(x.size(1))
        for step in x:
            self.hidden, self.memory = self.cell(step, (self.hidden, self.memory))
        return self.hidden
""",
        """\
import torch
from torch import nn


# What is on the device already is given back by .to() as it is: still a Parameter.
class Graph(nn.Module):
    def __init__(self, nodes, start, device):
        super().__init__()
        self.source = nn.Parameter(torch.randn(nodes, 10).to(device)).to(device)
        left, values, _ = torch.svd(start)
        first = left * values**0.5
        self.target = nn.Parameter(first, requires_grad=True).to(device)
""",
        """\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=device), requires_grad=True)
        self.register_buffer("mean", torch.zeros(size))
        self.frozen = torch.ones(size, requires_grad=False)

    def forward(self, x):
        return x * self.weight
""",
        """\
import torch
from torch import nn


class Attack(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.delta = torch.zeros(size, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.delta], lr=0.1)

    def forward(self, x):
        self.seen = torch.zeros(3, requires_grad=True)
        return x + self.delta
""",
        """\
import torch
from torch import nn


class Late(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.randn(size, requires_grad=True)
        self.weight = nn.Parameter(self.weight)


class Agent:
    def __init__(self):
        self.log_alpha = torch.zeros(1, requires_grad=True)
""",
        """\
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.w = torch.ones(size, requires_grad=True)

    def forward(self, x):
        return (x * self.w).sum()


net = Mix(4)
groups = [{"params": list(net.parameters())}]
groups += [{"params": [net.w]}]
optimizer = torch.optim.SGD(groups[1:], lr=0.1)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for statement in module.all(ast.Assign):
            match statement.targets:
                case [ast.Attribute(ast.Name("self"), name)]:
                    how = _unregistered(module, statement.value)
                    yield from self._check(module, statement, name, how)
                case [ast.Attribute(ast.Attribute(ast.Name("self")) as held, "requires_grad")]:
                    if module.constant(statement.value) is True:
                        yield from self._check_switched(module, statement, held)
        for call in module.method_calls("requires_grad_"):
            match call, module.parent(call):
                case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self")) as held), []), (
                    ast.Expr() as alone
                ):
                    yield from self._check_switched(module, alone, held)

    def _check_switched(
        self, module: Module, statement: ast.stmt, held: ast.Attribute
    ) -> Iterator[Finding]:
        """`self.w.requires_grad = True` on a tensor that the class made itself."""
        cls = module.class_(statement)
        values = module.attribute_values(cls, held.attr) if cls is not None else []
        if values and all(_is_fresh(module, v) for v in values):
            yield from self._check(module, statement, held.attr, _PLAIN)

    def _check(
        self, module: Module, statement: ast.stmt, name: str, how: str | None
    ) -> Iterator[Finding]:
        if (
            how is None
            or not self._in_builder(module, statement)
            or _cared_for(module, statement, name)
        ):
            return
        yield self.finding(
            module.location(statement),
            f"`self.{name}` is {how}, so it is not in `parameters()` and is never trained, moved or saved. Assign an `nn.Parameter`.",
            # a plain tensor may be somebody else's to train; what was a Parameter was meant to be one
            severity=Severity.INFO
            if _FIXED.search(module.segment(statement))
            else None
            if how == _PLAIN
            else Severity.ERROR,
        )

    def _in_builder(self, module: Module, statement: ast.stmt) -> bool:
        cls, function = module.class_(statement), module.function(statement)
        if cls is None or function is None or module.parent(function) is not cls:
            return False
        return (
            _BUILDERS.search(function.name) is not None
            and module.is_module_class(cls)
            and not _made_anew(cls, function.name)
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        editor = Editor(module)
        statement = editor.statement_at(finding.at.line)
        parameter = module.spelling("torch.nn.Parameter")
        if (
            not isinstance(statement, ast.Assign)
            or parameter is None
            or not isinstance(statement.value, ast.Call)
        ):
            return None
        call = statement.value
        if module.resolve(call.func) in _FACTORIES:
            without = editor.remove_keyword(call, "requires_grad")
            if without is None:
                return None
            return Fix("Register it as a parameter", (*_wrapped(module, call, parameter), without))
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            return Fix(
                "Register it as a parameter",
                (editor.replace(call, f"{parameter}({module.segment(call.func.value)})"),),
            )
        return None


def _made_anew(cls: ast.ClassDef, builder: str) -> bool:
    """Called by a method that builds nothing: made anew for every pass, as the first state of a recurrence is."""
    return any(
        isinstance(node, ast.Call) and of_self(node.func) == builder
        for method in methods_of(cls)
        if not _BUILDERS.search(method.name)
        for node in walk(method)
    )


def _unregistered(module: Module, value: ast.expr) -> str | None:
    """In words, why this value is a trainable tensor that is not a Parameter; None where it is not one."""
    match value:
        case ast.BinOp(left, _, right):
            made = _is_parameter(module, left) or _is_parameter(module, right)
            return "the result of an operation on a Parameter, not a Parameter" if made else None
        case ast.Call(func) if module.resolve(func) in _FACTORIES | {"torch.autograd.Variable"}:
            return _PLAIN if _asks_for_grad(module, value) else None
        case ast.Call(ast.Attribute(inner, "requires_grad_"), given) if _is_fresh(module, inner):
            on = not given or module.constant(given[0]) is True
            return _PLAIN if on else None
        case ast.Call(ast.Attribute(ast.Call() as inner, move)) if move in _MOVES:
            # .float() gives a float32 Parameter back as it is
            if _is_parameter(module, inner) and move != "float":
                if _there_already(module, inner, value):
                    return None
                return f"the result of .{move}() on a Parameter, which is a plain tensor"
            return _unregistered(module, inner)
        case ast.Call(ast.Attribute(ast.Name("self"), maker)):
            cls = module.class_(value)
            makers = [m for m in methods_of(cls) if m.name == maker] if cls is not None else []
            given = [r for method in makers for r in returned(module, method)]
            return _unregistered(module, given[0]) if len(given) == 1 else None
    return None


def _there_already(module: Module, parameter: ast.Call, moved: ast.Call) -> bool:
    """`nn.Parameter(x.to(device)).to(device)`: what is there already is given back as it is. So is what comes from elsewhere and may be."""
    match parameter.args:
        case [ast.Call(ast.Attribute(_, "to" | "cuda" | "cpu" as inner), given), *_]:
            same = [module.segment(a) for a in given] == [module.segment(a) for a in moved.args]
            return same and isinstance(moved.func, ast.Attribute) and moved.func.attr == inner
        case [(ast.Name() | ast.Attribute() | ast.Subscript()) as value, *_]:
            made = values_of(module).origin(value)
            return not isinstance(made, ast.expr) or not _is_fresh(module, made)
    return False


def _is_parameter(module: Module, node: ast.expr) -> bool:
    match node:
        case ast.Call(func, [ast.Call(_, [ast.Constant(0)])]) if module.resolve(func) in _PARAMETER:
            return False  # `nn.Parameter(torch.empty(0))` only remembers the device
        case ast.Call(func):
            return module.resolve(func) in _PARAMETER
    return False


def _asks_for_grad(module: Module, call: ast.Call) -> bool:
    return module.constant(Module.argument(call, None, "requires_grad")) is True


def _is_fresh(module: Module, node: ast.expr) -> bool:
    """A tensor made on the spot, perhaps moved or scaled."""
    if isinstance(node, ast.BinOp):
        sides = ((node.left, node.right), (node.right, node.left))
        return any(
            _is_fresh(module, a) and isinstance(b, ast.Constant | ast.Name) for a, b in sides
        )
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and module.resolve(node.func) not in _FACTORIES
    ):
        node = node.func.value
    return isinstance(node, ast.Call) and module.resolve(node.func) in _FACTORIES


def _cared_for(module: Module, statement: ast.stmt, name: str) -> bool:
    """Registered later, or handed to an optimizer by hand."""
    cls = module.class_(statement)
    assert cls is not None
    if any(_is_parameter(module, value) for value in module.attribute_values(cls, name)):
        return True
    for node in ast.walk(cls):
        match node:
            case ast.FunctionDef("parameters" | "named_parameters"):
                return True
    if _handled_by_name(module, cls, name) or _given_out(module, cls, name):
        return True
    for call in module.all(ast.Call):
        if "optim" in (module.resolve(call.func) or _written(module, call.func)):
            given = [*call.args, *(k.value for k in call.keywords)]
            parts = (n for a in given for n in ast.walk(a))
            if any(isinstance(n, ast.Attribute) and n.attr == name for n in parts):
                return True
    return False


def _given_out(module: Module, cls: ast.ClassDef, name: str) -> bool:
    """`self._arch_parameters = [self.alphas]`, which a method returns: somebody else trains it, as DARTS does."""
    for node in walk(cls):
        if isinstance(node, ast.List | ast.Tuple) and any(of_self(e) == name for e in node.elts):
            match module.parent(node):
                case ast.Return():
                    return True
                case ast.Assign([ast.Attribute(ast.Name("self"), held)]):
                    return any(
                        of_self(r) == held for m in methods_of(cls) for r in returned(module, m)
                    )
    return False


def _handled_by_name(module: Module, cls: ast.ClassDef, name: str) -> bool:
    """`{"params": [self.model.w]}`, `torch.save(net.w, path)` outside the class: somebody sees to it that it is trained or saved."""
    beside = module.project.beside(module, f".{name}".encode()) if module.project else []
    for home in (module, *beside):
        for node in home.all(ast.Attribute):
            match node:
                case ast.Attribute(ast.Name("self")):
                    continue
                case ast.Attribute(attr=attr) if attr == name and home.class_(node) is not cls:
                    return True
    return False


def _written(module: Module, func: ast.expr) -> str:
    return module.segment(func) if isinstance(func, ast.Name | ast.Attribute) else ""


def _wrapped(module: Module, call: ast.Call, wrapper: str) -> Iterator[Edit]:
    at = module.source.location(call)
    assert at.end_line is not None and at.end_column is not None
    editor = Editor(module)
    yield editor.insert(at.line, at.column, f"{wrapper}(")
    yield editor.insert(at.end_line, at.end_column, ")")

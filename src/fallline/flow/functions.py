"""The autograd Functions of a file: their methods, their inputs, and which of these are tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fallline.location import Location
from fallline.syntax import Module
from fallline.syntax.nodes import written

__all__ = ["AutogradFunction", "functions_in", "head", "own_nodes"]

Method = ast.FunctionDef | ast.AsyncFunctionDef

# Attributes and methods that only tensors have (among what forward is given).
_TENSOR_ATTRIBUTES = frozenset(
    """shape size dim ndim device dtype is_cuda contiguous is_contiguous new_empty new_zeros new_full new_tensor new view reshape clone
    detach clamp sum mean abs exp log sqrt pow matmul mm t transpose permute unsqueeze squeeze expand numel data type_as sign
    round floor data_ptr stride requires_grad ge gt le lt eq ne relu sigmoid tanh norm topk nonzero mul add sub div softmax
    add_ mul_ sub_ div_ clamp_ zero_ fill_ copy_ masked_fill_ masked_fill float half double""".split()
)
# What everyone calls a tensor; in arithmetic alone it could also be a number.
_USUAL_TENSORS = frozenset(
    "x y z a b input inputs input_ tensor weight bias logits features target".split()
)
# A process group has a size and a mesh has a dim; `shape` and `size` are tuples.
_OTHER_THINGS = re.compile(
    r"group$|mesh|config|cfg|^args$|^fn$|func|module|callback|shape$|sizes?$|dtype|device|stream|handle|store$|plan$|layout|^dims?$"
)
_TENSOR = re.compile(r"\bTensor\b")
# `Union[int, Tensor]` may be a number; a list of tensors is not a tensor.
_PLAIN = re.compile(
    r"\b(int|float|bool|str|tuple|Tuple|list|List|dict|Dict|Callable|Any|Sequence|Iterable)\b"
)


@dataclass(frozen=True, slots=True)
class AutogradFunction:
    """One subclass of torch.autograd.Function."""

    module: Module
    node: ast.ClassDef
    methods: dict[str, Method]

    @property
    def forward(self) -> Method | None:
        return self.methods.get("forward")

    @property
    def separate_context(self) -> bool:
        """forward takes no ctx: setup_context does."""
        return "setup_context" in self.methods

    def inputs(self) -> list[ast.arg]:
        """The arguments of forward that apply() is given; the ctx is not one."""
        assert self.forward is not None
        given = [*self.forward.args.posonlyargs, *self.forward.args.args]
        return given if self.separate_context else given[1:]

    @property
    def variadic(self) -> bool:
        return self.forward is not None and (
            self.forward.args.vararg is not None or bool(self.forward.args.kwonlyargs)
        )

    def context(self, method: Method) -> str | None:
        """What the ctx is called in forward or setup_context."""
        given = [*method.args.posonlyargs, *method.args.args]
        if not given or (method.name == "forward" and self.separate_context):
            return None
        return given[0].arg

    def calls(self, method: str) -> bool:
        """Whether forward or setup_context calls this method of ctx."""
        return any(
            isinstance(node, ast.Attribute) and node.attr == method
            for name in ("forward", "setup_context")
            if name in self.methods
            for node in own_nodes(self.methods[name])
        )

    def tensors(self) -> set[str]:
        """The inputs of forward that are surely tensors: annotated, or used as only tensors can be."""
        assert self.forward is not None
        wanted, sure, maybe = {a.arg for a in self.inputs()}, set(), set()
        for arg in self.inputs():
            kind = _annotation(arg)
            if kind is not None and _PLAIN.search(kind):
                wanted.discard(arg.arg)
            elif kind is not None and _TENSOR.search(kind):
                sure.add(arg.arg)
        for name in self._with_plain_defaults():
            wanted.discard(name)
        wanted = {name for name in wanted if not _OTHER_THINGS.search(name)}
        for node in own_nodes(self.forward):
            match node:
                case ast.Attribute(ast.Name(name), attr) if attr in _TENSOR_ATTRIBUTES:
                    sure |= {name} & wanted
                case ast.Call(ast.Name("isinstance"), [ast.Name(name), *_]):
                    maybe.add(name)
                case ast.Call():
                    sure |= wanted & self._given_as_tensors(node)
                case ast.BinOp(left, op, right):
                    sides = {s.id for s in (left, right) if isinstance(s, ast.Name)} & wanted
                    sure |= sides if isinstance(op, ast.MatMult) else sides & _USUAL_TENSORS
                case ast.AugAssign(ast.Name(name)):
                    sure |= {name} & wanted & _USUAL_TENSORS
        return (sure | (self._with_gradients() & wanted)) - maybe

    def _with_gradients(self) -> set[str]:
        """The inputs for which backward returns something: only a tensor has a gradient."""
        backward = self.methods.get("backward")
        returns = (
            [n.value for n in own_nodes(backward) if isinstance(n, ast.Return)] if backward else []
        )
        found: set[str] = set()
        for value in returns:
            given = value.elts if isinstance(value, ast.Tuple) else []
            for arg, gradient in zip(self.inputs(), given, strict=False):
                if not isinstance(gradient, ast.Constant | ast.Starred):
                    found.add(arg.arg)
        return found

    def _with_plain_defaults(self) -> set[str]:
        assert self.forward is not None
        given, defaults = self.inputs(), self.forward.args.defaults
        with_defaults = given[len(given) - len(defaults) :] if defaults else []
        return {a.arg for a, d in zip(with_defaults, defaults, strict=False) if _is_plain(d)}

    def _given_as_tensors(self, call: ast.Call) -> set[str]:
        """First arguments of torch operations, and what is saved for backward."""
        match call:
            case ast.Call(ast.Attribute(attr="save_for_backward" | "mark_dirty"), given):
                return {a.id for a in given if isinstance(a, ast.Name)}
            case ast.Call(func, [ast.Name(first), *_]):
                name = self.module.resolve(func) or ""
                operation = name.startswith("torch.") and name.rpartition(".")[2][:1].islower()
                return {first} if operation and name not in _NO_TENSOR_FIRST else set()
        return set()


_NO_TENSOR_FIRST = frozenset(
    f"torch.{n}"
    for n in "zeros ones empty full rand randn arange tensor eye linspace as_tensor randperm device is_tensor finfo".split()
)


def _annotation(arg: ast.arg) -> str | None:
    match arg.annotation:
        case None:
            return None
        case ast.Constant(str() as text):
            return text
    return written(arg.annotation)


def _is_plain(default: ast.expr) -> bool:
    return isinstance(default, ast.Constant) and default.value is not None


@lru_cache(maxsize=8)
def functions_in(module: Module) -> tuple[AutogradFunction, ...]:
    """Every class in this file that is a torch.autograd.Function."""
    found = []
    for node in module.all(ast.ClassDef):
        if node.bases and module.is_function_class(node):
            methods = {
                s.name: s
                for s in node.body
                if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            found.append(AutogradFunction(module, node, methods))
    return tuple(found)


def own_nodes(function: Method) -> Iterator[ast.AST]:
    """The nodes of a function in source order, without those of functions defined in it."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack += reversed(list(ast.iter_child_nodes(node)))


def head(module: Module, method: Method) -> Location:
    """Where a method's `def` line is, not its whole body."""
    at = module.location(method)
    line = module.source.lines[at.line - 1]
    return Location(at.path, at.line, at.column, at.line, len(line.rstrip()) + 1, at.function)

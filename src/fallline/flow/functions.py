"""The autograd Functions of a file: their methods, their inputs, and which of these are tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fallline.location import Location
from fallline.syntax import Module

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
    {
        "x",
        "y",
        "z",
        "a",
        "b",
        "input",
        "inputs",
        "input_",
        "tensor",
        "weight",
        "bias",
        "logits",
        "features",
        "target",
    }
)
_TENSOR = re.compile(r"\bTensor\b")
# `Union[int, Tensor]` may be a number; a list of tensors is no tensor.
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
        for node in own_nodes(self.forward):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in wanted and node.attr in _TENSOR_ATTRIBUTES:
                    sure.add(node.value.id)
            elif isinstance(node, ast.Call):
                if (
                    isinstance(node.func, ast.Name)
                    and node.func.id == "isinstance"
                    and isinstance(node.args[0], ast.Name)
                ):
                    maybe.add(node.args[0].id)
                sure |= wanted & self._given_as_tensors(node)
            elif isinstance(node, ast.BinOp):
                sides = {s.id for s in (node.left, node.right) if isinstance(s, ast.Name)} & wanted
                sure |= sides if isinstance(node.op, ast.MatMult) else sides & _USUAL_TENSORS
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                sure |= {node.target.id} & wanted & _USUAL_TENSORS
        return sure - maybe

    def _with_plain_defaults(self) -> set[str]:
        assert self.forward is not None
        given, defaults = self.inputs(), self.forward.args.defaults
        with_defaults = given[len(given) - len(defaults) :] if defaults else []
        return {a.arg for a, d in zip(with_defaults, defaults, strict=False) if _is_plain(d)}

    def _given_as_tensors(self, call: ast.Call) -> set[str]:
        """First arguments of torch operations, and what is saved for backward."""
        name = self.module.resolve(call.func) or ""
        if isinstance(call.func, ast.Attribute) and call.func.attr in {
            "save_for_backward",
            "mark_dirty",
        }:
            return {a.id for a in call.args if isinstance(a, ast.Name)}
        operation = (
            name.startswith("torch.")
            and name.rpartition(".")[2][:1].islower()
            and name not in _NO_TENSOR_FIRST
        )
        first = call.args[0] if call.args else None
        return {first.id} if operation and isinstance(first, ast.Name) else set()


_NO_TENSOR_FIRST = frozenset(
    {
        "torch.zeros",
        "torch.ones",
        "torch.empty",
        "torch.full",
        "torch.rand",
        "torch.randn",
        "torch.arange",
        "torch.tensor",
    }
    | {
        "torch.eye",
        "torch.linspace",
        "torch.as_tensor",
        "torch.randperm",
        "torch.device",
        "torch.is_tensor",
        "torch.finfo",
    }
)


def _annotation(arg: ast.arg) -> str | None:
    if isinstance(arg.annotation, ast.Constant) and isinstance(arg.annotation.value, str):
        return arg.annotation.value
    return ast.unparse(arg.annotation) if arg.annotation is not None else None


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
    """Where a method's `def` line stands, not its whole body."""
    at = module.location(method)
    line = module.source.lines[at.line - 1]
    return Location(at.path, at.line, at.column, at.line, len(line.rstrip()) + 1, at.function)

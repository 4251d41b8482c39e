"""The shape of a tensor as far as the source shows it: `view(-1)` is a vector, `nn.Linear(64, 1)` ends in a column.

A dimension that is not known is None. Where the number of dimensions is not known either, only the last ones are given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import last_name, of_self, operand, receiver, returned
from fallline.flow.makers import called_function, method_of
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import is_name

__all__ = ["Shape", "shape_of"]

_DEEPEST = 24
_MAKERS = frozenset("randn rand zeros ones empty".split())
_OF_LISTS = frozenset("tensor Tensor FloatTensor DoubleTensor LongTensor as_tensor".split())
_SAME = frozenset(
    "relu sigmoid tanh exp log log1p abs neg sqrt square pow clamp clip float double half bfloat16 to cuda cpu detach clone"
    " contiguous softplus gelu silu leaky_relu elu sin cos nan_to_num requires_grad_ type type_as logsigmoid sign"
    " add_ sub_ mul_ div_ clamp_ relu_ sigmoid_ tanh_ Variable Parameter".split()
)
_KEEPING_LAYERS = frozenset(
    "ReLU Sigmoid Tanh Softplus GELU SiLU ELU LeakyReLU Dropout Identity LayerNorm BatchNorm1d Hardtanh".split()
)
_REDUCTIONS = frozenset(
    "sum mean max min amax amin logsumexp norm prod std var argmax argmin".split()
)
_NUMBER = re.compile(
    r"(?i:(^|_)(alpha|beta|gamma|lamb?d\w*|coef\w*|weight|scale|temp\w*|tau|eps\w*|discount|factor|ratio|lr)$)|^[A-Z][A-Z_0-9]+$"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """`dims`: the known ones; `whole`: there are no others before them. `made_so`: someone added the last 1 by hand."""

    dims: tuple[int | None, ...]
    whole: bool = True
    made_so: bool = False

    @property
    def is_column(self) -> bool:
        """(..., 1) with at least one dimension before it."""
        return bool(self.dims) and self.dims[-1] == 1 and (not self.whole or len(self.dims) > 1)

    @property
    def is_vector(self) -> bool:
        """(n,), n not 1."""
        return self.whole and len(self.dims) == 1 and self.dims[0] != 1

    def __str__(self) -> str:
        dims = ["B" if d is None else str(d) for d in self.dims]
        if not self.whole:
            dims.insert(0, "B" if len(dims) == 1 else "...")
        return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


_VECTOR = Shape((None,))
_COLUMN = Shape((1,), whole=False)
_NUMBERS = Shape(())


def shape_of(module: Module, node: ast.expr | ast.arg, depth: int = 0) -> Shape | None:
    """The shape of what an expression stands for; None where nothing is known."""
    if depth > _DEEPEST:
        return None
    kept = module.notes(f"shape {depth}")  # many callers of callers lead to the same argument
    if node not in kept:
        kept[node] = None
        kept[node] = _shape_of(module, node, depth)
    known: Shape | None = kept[node]
    return known


def _shape_of(module: Module, node: ast.expr | ast.arg, depth: int) -> Shape | None:
    values = values_of(module)
    match node if isinstance(node, ast.arg) else values.origin(node):
        case ast.arg() as argument:
            return _agreed(shape_of(module, p, depth + 1) for p in values.passed(argument))
        case ast.Name() as name:
            return _of_name(module, name, depth)
        case ast.Constant(int() | float()):
            return _NUMBERS
        case ast.UnaryOp(_, inner):
            return shape_of(module, inner, depth + 1)
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
            return _broadcast(_or_number(module, left, depth), _or_number(module, right, depth))
        case ast.BinOp(left, ast.MatMult(), right):
            return _multiplied(
                shape_of(module, left, depth + 1), shape_of(module, right, depth + 1)
            )
        case ast.BinOp(left, ast.Pow(), _):
            return shape_of(module, left, depth + 1)
        case ast.Subscript(value, index):
            return _indexed(module, value, index, depth)
        case ast.Attribute(value, "data"):
            return shape_of(module, value, depth + 1)
        case ast.Attribute(ast.Call() as reduced, "values"):
            return _of_call(module, reduced, depth)
        case ast.Call() as call:
            return _of_call(module, call, depth)
    return None


def _of_name(module: Module, name: ast.Name, depth: int) -> Shape | None:
    """A name that was unpacked from a call, or one of those a loop over a loader binds."""
    part = values_of(module).unpacked(name)
    if part is not None and last_name(part[0]) in {"max", "min", "topk", "sort"}:
        return _of_call(module, part[0], depth)
    if part is not None:
        return _of_result(module, part[0], depth, part[1])
    bound = module.bindings(name.id, module.scope(name))
    up = module.parent(bound[0]) if len(bound) == 1 else None
    if isinstance(up, ast.Tuple):
        loop = module.parent(up)
        if isinstance(loop, ast.For) and loop.target is up:
            return _of_batch(module, loop.iter, up.elts.index(bound[0]), depth)  # type: ignore[arg-type]
    return _of_bindings(module, name, bound, depth)


def _of_bindings(module: Module, name: ast.Name, bound: list[ast.AST], depth: int) -> Shape | None:
    """A name of the script that is bound more than once, `x = x.to(device)` aside."""
    values: list[ast.expr] = []
    for binding in bound or module.bindings(name.id, None):
        match module.parent(binding):
            case ast.Assign([ast.Name()], ast.Call() as call) if last_name(
                call
            ) in _SAME and is_name(receiver(module, call) or next(iter(call.args), None), name.id):
                continue
            case ast.Assign([ast.Name()], value):
                values.append(value)
            case _:
                return None
    return _agreed(shape_of(module, value, depth + 1) for value in values)


def _of_batch(module: Module, loader: ast.expr, place: int, depth: int) -> Shape | None:
    """One of the tensors of a TensorDataset, as its loader gives it: the first dimension becomes the batch."""
    match values_of(module).origin(loader):
        case ast.Call(args=[dataset, *_]) as made if last_name(made) == "DataLoader":
            match values_of(module).origin(dataset):
                case ast.Call(args=tensors) as held if last_name(held) == "TensorDataset":
                    if place < len(tensors):
                        whole = shape_of(module, tensors[place], depth + 1)
                        if whole is not None and whole.whole and whole.dims:
                            return Shape((None, *whole.dims[1:]))
    return None


def _or_number(module: Module, node: ast.expr, depth: int) -> Shape | None:
    """What is called alpha or gamma is taken for one number where nothing else is known."""
    found = shape_of(module, node, depth + 1)
    if found is None:
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) if _NUMBER.search(name):
                return _NUMBERS
    return found


def _broadcast(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None:
        return None
    if not left.dims and left.whole:
        return right
    if not right.dims and right.whole:
        return left
    if not (left.whole and right.whole):
        return left if left.is_column and right.is_column else None
    longest = max(len(left.dims), len(right.dims))
    padded = [(1,) * (longest - len(s.dims)) + s.dims for s in (left, right)]
    pairs = zip(*padded, strict=True)
    return Shape(tuple(b if a == 1 else a if b == 1 or a == b else None for a, b in pairs))


def _indexed(module: Module, value: ast.expr, index: ast.expr, depth: int) -> Shape | None:
    match index:
        case ast.Name() | ast.Attribute():  # of `returns[indices]`; a number would leave one return
            whole = shape_of(module, value, depth + 1)
            return whole if whole is not None and whole.is_vector and _is_many(index) else None
        case ast.Tuple([*_, ast.Constant(None)]):
            return Shape((1,), whole=False, made_so=True)
        case ast.Constant(0):  # of `x.max(1)[0]`
            reduced = values_of(module).origin(value)
            if isinstance(reduced, ast.Call) and last_name(reduced) in {"max", "min"}:
                return _of_call(module, reduced, depth)
    return None


def _is_many(index: ast.expr) -> bool:
    return re.search(r"ind(ices|s|exes)|idxs?$|mask|perm|batch|order", last_name(index)) is not None


def _of_call(module: Module, call: ast.Call, depth: int) -> Shape | None:
    name, dotted = last_name(call), module.resolve(call.func)
    is_torch = dotted is not None and dotted.startswith("torch.")
    if is_torch and name in _MAKERS:
        return _literal(module, call.args)
    if is_torch and name in _OF_LISTS:
        if len(call.args) != 1:
            return None
        return _of_list(call.args[0]) or _of_filled_list(module, call.args[0])
    if is_torch and name in {"arange", "linspace"}:
        return _VECTOR
    if is_torch and name in {"full", "randint"}:
        sizes: list[ast.expr] = [a for a in call.args if isinstance(a, ast.Tuple | ast.List)]
        return _literal(module, sizes) if len(sizes) == 1 else None
    on_tensor = is_torch or (isinstance(call.func, ast.Attribute) and of_self(call.func) is None)
    known = method_of(module, call.func) if isinstance(call.func, ast.Attribute) else None
    if on_tensor and known is None:
        found = _of_operation(module, call, name, depth)
        if found is not None or is_torch:
            return found
    return _of_result(module, call, depth, None)


def _literal(module: Module, sizes: list[ast.expr]) -> Shape | None:
    """`torch.randn(64, 1)`, `torch.randn((64, 1))`."""
    match sizes:
        case [ast.Tuple(elts) | ast.List(elts)]:
            sizes = elts
    if not sizes or any(isinstance(s, ast.Starred) for s in sizes):
        return None
    if len(sizes) == 1 and module.number(sizes[0]) is None and not _is_count(module, sizes[0]):
        return None  # a shape held in a name
    numbers = (module.number(s) for s in sizes)
    return Shape(tuple(None if n is None else int(n) for n in numbers))


def _of_list(node: ast.expr) -> Shape | None:
    """`[[1.0, 2.0], [3.0, 4.0]]`, numbers as they stand."""
    dims: list[int] = []
    while isinstance(node, ast.List | ast.Tuple) and node.elts:
        if any(isinstance(e, ast.Starred) for e in node.elts):
            return None
        dims.append(len(node.elts))
        node = node.elts[0]
    match node:
        case ast.Constant(int() | float()) | ast.UnaryOp(operand=ast.Constant(int() | float())):
            return Shape(tuple(dims))
    return None


def _of_filled_list(module: Module, node: ast.expr) -> Shape | None:
    """`returns` that a loop fills with a running number: `total = 0.0`, `returns.insert(0, total)`."""
    if not isinstance(node, ast.Name):
        return None
    scope = module.scope(node)
    given: list[ast.expr] = []
    for call in module.method_calls("append", "insert"):
        match call:
            case ast.Call(ast.Attribute(ast.Name(kept)), [*_, item]) if kept == node.id:
                given += [item] if module.scope(call) is scope else []
    return _VECTOR if given and all(_begins_as_number(module, item) for item in given) else None


def _begins_as_number(module: Module, item: ast.expr) -> bool:
    """A name that is bound to a number first."""
    bound = module.bindings(item.id, module.scope(item)) if isinstance(item, ast.Name) else []
    first = values_of(module).bound_to(bound[0]) if bound else None
    return isinstance(first, ast.expr) and module.number(first) is not None


def _multiplied(left: Shape | None, right: Shape | None) -> Shape | None:
    """A matrix times a vector or a matrix."""
    if left is None or right is None or not (left.whole and right.whole) or len(left.dims) != 2:
        return None
    return Shape((left.dims[0], *right.dims[1:])) if len(right.dims) in (1, 2) else None


def _joined(module: Module, call: ast.Call, depth: int) -> Shape | None:
    """`torch.cat((x, bias), 1)`."""
    parts = call.args[0] if call.args else None
    dim = module.argument(call, 1, "dim")
    at = 0.0 if dim is None else module.number(dim)
    if not isinstance(parts, ast.List | ast.Tuple) or at is None:
        return None
    shapes = [shape_of(module, part, depth + 1) for part in parts.elts]
    first = shapes[0] if shapes else None
    if first is None or not -len(first.dims) <= at < len(first.dims):
        return None
    if any(s is None or not s.whole or len(s.dims) != len(first.dims) for s in shapes):
        return None
    dims: list[int | None] = list(first.dims)
    dims[int(at)] = None
    return Shape(tuple(dims))


def _is_count(module: Module, node: ast.expr) -> bool:
    """`len(x)`, `x.size(0)`, `x.shape[0]`, `x.size()[0]`: one number."""
    match values_of(module).origin(node):
        case ast.Call(ast.Name("len"), [_]) | ast.Call(
            ast.Attribute(attr="size"), [ast.Constant()]
        ):
            return True
        case ast.Subscript(
            ast.Attribute(attr="shape") | ast.Call(ast.Attribute(attr="size"), []),
            ast.Constant(int()),
        ):
            return True
    return False


def _of_operation(module: Module, call: ast.Call, name: str, depth: int) -> Shape | None:
    of = receiver(module, call)
    inner = shape_of(module, of, depth + 1) if of is not None else None
    extra = call.args[(module.resolve(call.func) is not None) :]
    if name in {"view", "reshape"}:
        return _viewed(module, extra)
    if name in {"mm", "matmul", "mv"} and extra:
        return _multiplied(inner, shape_of(module, extra[0], depth + 1))
    if name in {"cat", "concat"} and module.resolve(call.func) is not None:
        return _joined(module, call, depth)
    if name in {"flatten", "ravel"} and not extra and not call.keywords:
        return _VECTOR
    if name in {"min", "max", "minimum", "maximum"} and extra and _is_tensor(module, extra[0]):
        other = shape_of(module, extra[0], depth + 1)
        return _broadcast(inner, other) if inner is not None and other is not None else None
    if name in _REDUCTIONS:
        return _reduced(module, call, inner)
    if name == "gather":
        return _gathered(module, call, inner)
    if name in _SAME:
        return inner
    if name == "unsqueeze":
        return _unsqueezed(module, call, inner)
    if name == "squeeze":
        return _squeezed(module, call, inner)
    return None


def _is_tensor(module: Module, node: ast.expr) -> bool:
    return module.number(node) is None


def _viewed(module: Module, sizes: list[ast.expr]) -> Shape | None:
    match sizes:
        case [ast.Tuple(elts) | ast.List(elts)]:
            sizes = elts
    numbers = [module.number(s) for s in sizes]
    if numbers == [-1]:
        return _VECTOR
    if len(sizes) < 2 or any(isinstance(s, ast.Starred) for s in sizes):
        return None
    dims = tuple(None if n is None or n < 0 else int(n) for n in numbers)
    return Shape(dims, made_so=dims[-1] == 1)


def _unsqueezed(module: Module, call: ast.Call, inner: Shape | None) -> Shape | None:
    dim = module.number(operand(module, call, "dim"))
    if dim == -1:
        return Shape((1,), whole=False, made_so=True)
    if inner is None or not inner.whole or dim is None or not 0 <= dim <= len(inner.dims):
        return None
    at = int(dim)
    return Shape((*inner.dims[:at], 1, *inner.dims[at:]), made_so=at == len(inner.dims))


def _squeezed(module: Module, call: ast.Call, inner: Shape | None) -> Shape | None:
    given = operand(module, call, "dim")
    if inner is not None and not inner.whole and inner.is_column and len(inner.dims) == 1:
        # what a network's last layer gives for a batch, (B, 1)
        return _VECTOR if given is None or module.number(given) in (-1, 1) else None
    if inner is None or not inner.whole:
        return None
    if given is None:
        return None if None in inner.dims[1:] else Shape(tuple(d for d in inner.dims if d != 1))
    dim = module.number(given)
    if dim is None or not -len(inner.dims) <= dim < len(inner.dims):
        return None
    at = int(dim) % len(inner.dims)
    if inner.dims[at] != 1:
        return inner if inner.dims[at] is not None else None
    return Shape((*inner.dims[:at], *inner.dims[at + 1 :]))


def _reduced(module: Module, call: ast.Call, inner: Shape | None) -> Shape | None:
    given = operand(module, call, "dim", "axis")
    if given is None:
        return _NUMBERS if not call.keywords else None
    dim = module.number(given)
    keepdim = operand(module, call, "keepdim", place=1)
    keeps = keepdim is not None and module.constant(keepdim) is True
    if dim is None:
        return None
    if inner is not None and inner.whole and -len(inner.dims) <= dim < len(inner.dims):
        at = int(dim) % len(inner.dims)
        left = (1,) if keeps else ()
        return Shape((*inner.dims[:at], *left, *inner.dims[at + 1 :]))
    # (B, A).sum(1, keepdim=True), of a tensor whose size is not seen
    if keeps:
        return _COLUMN if dim in (1, -1) else None
    # (B, A).max(1), of what a network's last layer gives for a batch
    last = inner is not None and not inner.whole and len(inner.dims) == 1
    return _VECTOR if last and dim == 1 else None


def _gathered(module: Module, call: ast.Call, inner: Shape | None) -> Shape | None:
    """`q(states).gather(1, actions)`: one value for each row, as a column."""
    dim, index = operand(module, call, "dim"), operand(module, call, "index", place=1)
    known = shape_of(module, index) if index is not None else None
    if known is not None:
        return known
    one = index is not None and re.search(r"action|label|target", module.segment(index)) is not None
    rows = inner is not None and module.number(dim) == 1
    return _COLUMN if one and rows else None


def _of_result(module: Module, call: ast.Call, depth: int, element: int | None) -> Shape | None:
    """What a model, a method or a function of the project returns."""
    layer = _layer(module, call)
    if layer is not None:
        return _of_layer(module, layer, call, depth)
    function = called_function(module, call)
    if function is None:
        return None
    home, body = function
    found = []
    for value in returned(home, body):
        whole = values_of(home).origin(value)
        if isinstance(whole, ast.Tuple):
            if element is None or element >= len(whole.elts):
                return None
            found.append(shape_of(home, whole.elts[element], depth + 1))
        else:
            found.append(shape_of(home, value, depth + 1) if element is None else None)
    return _agreed(found)


def _layer(module: Module, call: ast.Call) -> ast.Call | None:
    """The construction of the torch.nn layer that is called."""
    made = values_of(module).constructed(call.func)
    dotted = module.resolve(made.func) if made is not None else None
    return made if dotted is not None and dotted.startswith("torch.nn.") else None


def _of_layer(module: Module, made: ast.Call, call: ast.Call, depth: int) -> Shape | None:
    name = last_name(made)
    if name == "Sequential":
        for part in reversed(made.args):
            inner = _initialised(module, values_of(module).built(part))
            if not isinstance(inner, ast.Call):
                return None
            if last_name(inner) not in _KEEPING_LAYERS:
                return _linear(module, inner) if last_name(inner) == "Linear" else None
        return None
    if name == "Linear":
        width = _linear(module, made)
        given = shape_of(module, call.args[0], depth + 1) if call.args else None
        if given is not None and given.whole and len(given.dims) > 1:
            return Shape((*given.dims[:-1], *width.dims))
        return width
    if name in _KEEPING_LAYERS and call.args:
        return shape_of(module, call.args[0], depth + 1)
    return None


def _initialised(module: Module, made: ast.expr) -> ast.expr:
    """`nn.Linear(64, 1)` of `layer_init(nn.Linear(64, 1), std=1.0)`, which gives the layer back."""
    match made:
        case ast.Call(ast.Name(name), [ast.Call(func) as layer, *_]) if name in module.functions:
            if (module.resolve(func) or "").startswith("torch.nn."):
                return layer
    return made


def _linear(module: Module, made: ast.Call) -> Shape:
    width = module.number(module.argument(made, 1, "out_features"))
    return Shape((None if width is None else int(width),), whole=False)


def _agreed(found: Iterator[Shape | None] | list[Shape | None]) -> Shape | None:
    """The one answer, where all paths give the same."""
    answers = iter(found)
    first = next(answers, None)
    return first if first is not None and all(f == first for f in answers) else None

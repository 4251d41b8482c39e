"""What a plain list or dict holds that a module keeps: layers that are put into it, or that whoever builds the module hands over."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fallline.flow.callers import passed_for
from fallline.flow.calls import last_name, names_in, of_self
from fallline.flow.modules import annotates_module, construction, function_called, has_state
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, is_name, walk
from fallline.syntax.once import once

__all__ = [
    "Kept",
    "added",
    "contents",
    "elements_called",
    "for_this_pass",
    "is_handed_layers",
    "is_layer",
    "looks_like_layer",
    "on_the_spot",
    "or_empty",
    "says_layers",
    "self_assignment",
]

_PLAIN_HOLDERS = frozenset("list List Sequence tuple Tuple dict Dict Mapping".split())
# What `list()` makes a plain list of, whatever it was before.
_GONE_OVER = _PLAIN_HOLDERS | frozenset({"Iterable", "Collection", "Iterator"})
_LAYERS = re.compile(r"(^|_)(model|module|layer|block|encoder|decoder)$")
_MAKES_LAYERS = re.compile(
    r"(^|_)(get|make|build|create|instantiate)_(\w+_)?(layer|block|module|net|network|model|head|encoder|decoder|conv|mlp|expert|stage)(_\w+)?$"
)
# a class that is handed over: `def __init__(self, block, ...)`, `self.operator_block`
_CLASS_OF_LAYERS = re.compile(
    r"(^|_)(layer|block)(_(cls|class|type|fn))?$"
    r"|^[A-Z]\w*(Conv\dd?|Conv|Convolution|Layer|Block|Linear|Attention|Norm|Cell|Encoder|Decoder|Head|Net|MLP|Transformer|Embedding|LSTM|GRU)$"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """`self.<name> = <value>`, a plain container that layers are put into."""

    module: Module
    cls: ast.ClassDef
    statement: ast.stmt
    name: str
    value: ast.expr
    made: ast.expr  # the list or dict behind the value
    presumed: bool = False  # that they are layers is known by how they are called alone
    declared: bool = False  # by what an annotation says: whether they have weights is not seen

    @property
    def is_dict(self) -> bool:
        return isinstance(self.made, ast.Dict | ast.DictComp) or last_name(self.made) == "dict"

    @property
    def is_empty(self) -> bool:
        """Written as an empty container on the spot."""
        return items(self.value) == []

    def is_mine(self, node: ast.AST) -> bool:
        """`self.<name>`, or the local name that was assigned to it."""
        match node, self.value:
            case ast.Name(name), ast.Name(local):
                return name == local
        return of_self(node) == self.name

    def uses(self) -> Iterator[tuple[ast.Attribute, ast.AST | None]]:
        """Where the class writes `self.<name>`, and what is around it."""
        for node in _own_attributes(self.module, self.cls).get(self.name, ()):
            yield node, self.module.parent(node)

    def used_later(self) -> bool:
        """Whether a method other than the constructor reads it."""
        homes = (self.module.function(n) for n, _ in self.uses() if isinstance(n.ctx, ast.Load))
        return any(home is not None and home.name != "__init__" for home in homes)

    def is_evaluated_by_hand(self) -> bool:
        """`[m.eval() for m in self.models]`, and nowhere `train()`: models that were trained before, to be asked together."""
        over = {
            name
            for node in below(self.cls, ast.For, ast.comprehension)
            if self.is_mine(node.iter)
            for name in names_in(node.target)
        }
        calls = [
            (call.func.attr, call.func.value)
            for call in below(self.cls, ast.Call)
            if call.func.__class__ is ast.Attribute
        ]
        asked = {name for name, of in calls if names_in(of) & over}
        return "eval" in asked and not asked & {"train", "parameters", "named_parameters"}

    def read_by_others(self) -> bool:
        """Whether code outside the class says `.<name>`, in this file or another: of a model, or of a class made from this one."""
        inside = {id(node) for node, _ in self.uses()}
        said = (n for n in self.module.all(ast.Attribute) if n.attr == self.name)
        if any(id(n) not in inside for n in said):
            return True
        project = self.module.project
        others = project.naming(self.module, self.cls.name) if project is not None else []
        return any(f".{self.name}" in text for _, text in others)


@once
def _own_attributes(module: Module, cls: ast.ClassDef) -> dict[str, list[ast.Attribute]]:
    """Where a class writes `self.<name>`, by the name."""
    found: dict[str, list[ast.Attribute]] = {}
    for node in below(cls, ast.Attribute):
        name = of_self(node)
        if name is not None:
            found.setdefault(name, []).append(node)
    return found


def self_assignment(statement: ast.AST | None) -> tuple[str | None, ast.expr | None]:
    """`x` and `value` of `self.x = value`."""
    match statement:
        case (
            ast.Assign([ast.Attribute(ast.Name("self"), name)], value)
            | ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name), value=value)
        ):
            return name, value
    return None, None


def items(made: ast.expr) -> list[ast.expr] | None:
    """What a list, tuple or dict is written with: displays, comprehensions, `list()`, `[a] + [b]`; None for anything else."""
    match made:
        case ast.List(elts) | ast.Tuple(elts):
            return elts
        case ast.ListComp(element) | ast.DictComp(value=element):
            return [element]
        case ast.Dict(values=values):
            return values
        case ast.Call(ast.Name("list" | "dict"), [], []):
            return []
        case ast.BinOp(left, ast.Add(), right):
            a, b = items(left), items(right)
            return [*a, *b] if a is not None and b is not None else None
    return None


def contents(
    module: Module, made: ast.expr, holders: frozenset[str] = _PLAIN_HOLDERS
) -> list[ast.expr] | None:
    """Like `items`, and for a list of modules that the constructor was given, what its annotation says it holds."""
    match made:
        case ast.Call(ast.Name("dict"), [ast.Call(ast.Name("zip"), [*_, given])]):
            return contents(module, given)
        case ast.Call(ast.Name("list" | "tuple"), [given]):
            return contents(module, given, _GONE_OVER)
        case ast.Name(name):
            scope = module.scope(made)
            match module.bindings(name, scope):
                case [ast.arg(annotation=ast.expr() as said)]:
                    held = _held(said, holders)
                    return [held] if held is not None and annotates_module(module, held) else None
    return items(module.value(made))


def _held(annotation: ast.expr, holders: frozenset[str]) -> ast.expr | None:
    """`nn.Module` of `list[nn.Module]`, `Optional[Sequence[nn.Module]]`, `dict[str, nn.Module] | None`."""
    match annotation:
        case ast.Subscript(holder, held) if last_name(holder) == "Optional":
            return _held(held, holders)
        case ast.BinOp(said, ast.BitOr(), ast.Constant(None)):
            return _held(said, holders)
        case ast.Subscript(holder, ast.Tuple([*_, held])) if last_name(holder) in holders:
            return held
        case ast.Subscript(holder, held) if last_name(holder) in holders:
            return held
    return None


def or_empty(value: ast.expr) -> ast.expr:
    """`layers` of `layers or []` and `layers if layers is not None else []`."""
    match value:
        case ast.BoolOp(ast.Or(), [ast.Name() as given, other]):
            return given if items(other) == [] else value
        case ast.IfExp(ast.Compare(ast.Name(asked)), ast.Name(name) as given, other):
            return given if asked == name and items(other) == [] else value
    return value


def is_handed_layers(kept: Kept) -> bool:
    """An argument whose elements the class calls, and for which the project hands over plain lists of layers."""
    match kept.made:
        case ast.Name() as given if elements_called(kept) or _goes_on(kept):
            passed = [(home, _filled(home, v)) for home, v in passed_for(kept.module, given)]
        case _:
            return False
    known = [(home, held) for home, held in passed if held]
    return bool(known) and all(any(is_layer(home, h) for h in held) for home, held in known)


def _filled(home: Module, value: ast.expr) -> list[ast.expr] | None:
    """What a list holds that is written here, or made empty and filled by the loop after it; None for anything else."""
    if not isinstance(value, ast.Name):
        return items(value)
    scope = home.scope(value)
    made = _assigned(home, value)
    written = [items(m) for m in made or ()]
    if not written or None in written:
        return None
    inside = [item for found in written for item in found or ()]
    return [*inside, *_put_into(scope or home.tree, lambda node: is_name(node, value.id))]


def _assigned(home: Module, name: ast.Name) -> list[ast.expr] | None:
    """The values of a local name, where all of them can be seen; `x += ...` does not count."""
    scope = home.scope(name)
    bound = home.bindings(name.id, scope) or home.bindings(name.id, None)
    made = [home.parent(b) for b in bound]
    values = [m.value for m in made if isinstance(m, ast.Assign)]
    others = [m for m in made if not isinstance(m, ast.Assign | ast.AugAssign)]
    return values if values and not others else None


def says_layers(kept: Kept) -> bool:
    """`self.layers: list[nn.Module] | None`, somewhere in the class, or `layers: list[nn.Module]` in its body."""
    for said in below(kept.cls, ast.AnnAssign):
        if of_self(said.target) != kept.name and not is_name(said.target, kept.name):
            continue
        for holder in below(said.annotation, ast.Subscript):
            element = holder.slice.elts[-1] if isinstance(holder.slice, ast.Tuple) else holder.slice
            if last_name(holder.value) in _PLAIN_HOLDERS and annotates_module(kept.module, element):
                return True
    return False


def looks_like_layer(item: ast.expr) -> bool:
    """`make_block(...)`, `self.block_class(...)`: a maker that cannot be seen, named after what it makes."""
    match item:
        case ast.Call(ast.Name(name) | ast.Attribute(ast.Name("self"), name)):
            if _CLASS_OF_LAYERS.search(name):
                return True
    return isinstance(item, ast.Call) and _MAKES_LAYERS.search(last_name(item)) is not None


def elements_called(kept: Kept) -> bool:
    """`for layer in self.layers: x = layer(x)`, `[layer(x) for layer in self.layers]`, `self.layers[i](x)`."""
    for _, up in kept.uses():
        while isinstance(up, ast.Subscript):
            up = kept.module.parent(up)
        match up:
            case ast.Call(ast.Subscript()):
                return True
            case ast.Call(ast.Name("enumerate" | "zip" | "reversed")) as over:
                up = kept.module.parent(over)
        match up:
            case ast.For(target) | ast.comprehension(target):
                each = names_in(target)
                around = up if isinstance(up, ast.For) else kept.module.parent(up) or up
                if any(_calls_one_of(c, each) for c in below(around, ast.Call)):
                    return True
    return False


def _calls_one_of(call: ast.Call, names: set[str]) -> bool:
    """`layer(x)`, `layer.forward(x)`."""
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name(name), "forward"):
            return name in names and bool(call.args or call.keywords)
    return False


def _goes_on(kept: Kept) -> bool:
    """`Flow(self.layers)(x)` in `forward`: a module made for this pass alone."""
    return any(isinstance(up, ast.Call) and for_this_pass(kept, up) for _, up in kept.uses())


def on_the_spot(item: ast.expr) -> bool:
    return isinstance(item, ast.Call | ast.Name | ast.Attribute)


def added(kept: Kept) -> Iterator[ast.expr]:
    """What is put into the container later."""
    return _put_into(kept.cls, kept.is_mine)


def _put_into(around: ast.AST, is_it: Callable[[ast.AST], bool]) -> Iterator[ast.expr]:
    """What is put into a container: append, insert, extend, +=, and assignment to a key."""
    for node in walk(around):
        match node:
            case ast.Call(ast.Attribute(holder, method), [*_, last]) if is_it(holder):
                if method in {"append", "insert"}:
                    yield last
                elif method in {"extend", "update"}:
                    yield from items(node.args[0]) or ()
            case ast.AugAssign(target, _, ast.List() | ast.ListComp() as more):
                if is_it(target):
                    yield from items(more) or ()
            case ast.Assign([ast.Subscript(holder), *_], value) if is_it(holder):
                yield value


def is_layer(module: Module, item: ast.expr) -> bool:
    """A layer made on the spot, held by a local name that no attribute registers, or named by an annotation."""
    if annotates_module(module, item) or _says_it_gives_layers(module, item):
        return True
    match item:
        case ast.Call(ast.Attribute(attr="deepcopy") | ast.Name("deepcopy"), [ast.Name() as given]):
            return _is_handed_layer(module, given)
        case ast.Call(
            ast.Attribute(attr="deepcopy") | ast.Name("deepcopy"),
            [ast.Attribute(ast.Name("self"), name) as given],
        ):
            cls = module.class_(given)
            values = module.attribute_values(cls, name) if cls is not None else []
            return bool(values) and all(has_state(module, v) for v in values)
        case ast.Call(ast.Name() as maker) if (default := _default(module, maker)) is not None:
            return has_state(module, ast.Call(default, item.args, item.keywords))
    if not isinstance(item, ast.Name):
        inner = items(item) or ()  # a list of lists
        return has_state(module, item) or any(is_layer(module, i) for i in inner)
    if _has_attribute(module, item):
        return False
    made = _assigned(module, item) or []
    if any(has_state(module, m) or _says_it_gives_layers(module, m) for m in made):
        return True
    return any(is_layer(module, i) for i in _filled(module, item) or ())


def _says_it_gives_layers(module: Module, item: ast.expr) -> bool:
    """`self.make_block(n)` of `def make_block(self, n) -> nn.Module`, or `-> list[Block]`."""
    maker: tuple[Module, ast.AST] | None = None
    match item:
        case ast.Call(ast.Attribute(ast.Name("self"), name)):
            cls = module.class_(item)
            maker = find_method(module, cls, name) if cls is not None else None
        case ast.Call(func):
            maker = function_called(module, func)
    match maker:
        case home, ast.FunctionDef(returns=ast.expr() as said):
            held = _held(said, _PLAIN_HOLDERS)
            if annotates_module(home, said if held is None else held):
                # not one that the model has already
                return not any(_of_the_model(r) for r in below(maker[1], ast.Return))
    return False


def _of_the_model(given: ast.Return) -> bool:
    match given.value:
        case ast.Call(ast.Name("getattr"), [ast.Name("self"), *_]):
            return True
        case ast.expr() as value:
            return any(of_self(n) is not None for n in below(value, ast.Attribute)) and not (
                below(value, ast.Call)
            )
    return False


def _default(module: Module, name: ast.Name) -> ast.expr | None:
    """The layer class that a parameter stands for unless the caller says otherwise: `norm_layer=nn.LayerNorm`, `partial(nn.LayerNorm)`."""
    function = module.function(name)
    if function is None:
        return None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if argument.arg == name.id:
            match default:
                case ast.Call(ast.Attribute(attr="partial") | ast.Name("partial"), [made, *_]):
                    return made
                case ast.Name() | ast.Attribute():
                    return default
    return None


def _is_handed_layer(module: Module, given: ast.Name) -> bool:
    """A copy of a layer that the constructor was given: it is annotated or called so."""
    match module.bindings(given.id, module.scope(given)):
        case [ast.arg(annotation=annotation)]:
            said = annotation is not None and annotates_module(module, annotation)
            return said or _LAYERS.search(given.id) is not None
    return is_layer(module, given)


def _has_attribute(module: Module, item: ast.Name) -> bool:
    """`self.x = layer` next to `self.layers.append(layer)` registers it, and so may `nn.Sequential(block, layer)`."""
    for node in walk(module.class_(item) or item):
        match node:
            case ast.Assign(targets, ast.Name(name)) if name == item.id:
                if any(isinstance(t, ast.Attribute) for t in targets):
                    return True
            case ast.Call(args=given) if module.scope(node) is module.scope(item):
                others = (a for a in given if isinstance(a, ast.Name) and a is not item)
                if any(a.id == item.id for a in others) and construction(module, node) is not None:
                    return True
    return False


def for_this_pass(kept: Kept, call: ast.Call) -> bool:
    """A module that `forward` makes registers nothing with this one."""
    return (
        construction(kept.module, call) is not None
        and getattr(kept.module.function(call), "name", "") == "forward"
    )

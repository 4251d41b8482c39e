"""Which layers a module keeps in a plain list or dict, and whether something registers them after all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fallline.flow.calls import last_name, names_in, of_self
from fallline.flow.modules import annotates_module, construction, has_state
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, walk

__all__ = ["Kept", "kept_layers", "self_assignment"]

_REGISTRARS = frozenset({"add_module", "register_module", "setattr"})
_CONTAINERS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_BY_HAND = frozenset({"_modules", "__dict__", "__setattr__"})
_OWN_METHODS = frozenset({"parameters", "named_parameters", "__setattr__", "train"})
# Builtins that only look at what they are given.
_PLAIN_HOLDERS = frozenset("list List Sequence tuple Tuple dict Dict Mapping".split())
_LAYERS = re.compile(r"(^|_)(model|module|layer|block|encoder|decoder)$")
_MAKES_LAYERS = re.compile(
    r"(^|_)(get|make|build|create|instantiate)_(\w+_)?(layer|block|module|net|network|model|head|encoder|decoder|conv|mlp|expert|stage)(_\w+)?$"
)
_LOOKS = frozenset("len enumerate zip range reversed print list sum iter isinstance".split())


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
        for node in below(self.cls, ast.Attribute):
            if of_self(node) == self.name:
                yield node, self.module.parent(node)

    def used_later(self) -> bool:
        """Whether a method other than the constructor reads it."""
        homes = (self.module.function(n) for n, _ in self.uses() if isinstance(n.ctx, ast.Load))
        return any(home is not None and home.name != "__init__" for home in homes)


def kept_layers(module: Module) -> Iterator[Kept]:
    """The plain lists and dicts of layers that no one registers."""
    statements: list[ast.Assign | ast.AnnAssign] = [*module.all(ast.Assign)]
    for statement in statements + module.all(ast.AnnAssign):
        match statement.value:  # most of what is assigned is no container that is written here
            case ast.Attribute() | ast.Constant() | ast.Call(ast.Attribute()):
                continue
        name, value = self_assignment(statement)
        if name is None or value is None:
            continue
        made = module.value(value)
        inside = _contents(module, made)
        if inside is None or (inside and not any(map(_on_the_spot, inside))):
            continue
        cls = module.class_(statement)
        if cls is None:
            continue
        kept = Kept(module, cls, statement, name, value, made)
        put_in = [*inside, *_added(kept)]
        sure = any(_is_layer(module, item) for item in put_in) or _says_layers(kept)
        if not sure and not (any(map(_looks_like_layer, put_in)) and _elements_called(kept)):
            continue
        if module.is_module_class(cls) and not _registered(kept):
            yield kept if sure else replace(kept, presumed=True)


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


def _contents(module: Module, made: ast.expr) -> list[ast.expr] | None:
    """Like `items`, and for a list of modules that the constructor was given, what its annotation says it holds."""
    match made:
        case ast.Call(ast.Name("dict"), [ast.Call(ast.Name("zip"), [*_, given])]):
            return _contents(module, given)
        case ast.Call(ast.Name("list" | "tuple"), [given]):
            return _contents(module, given)
        case ast.Name(name):
            scope = module.scope(made)
            match module.bindings(name, scope):
                case [ast.arg(annotation=ast.Subscript(holder, held))]:
                    element = held.elts[-1] if isinstance(held, ast.Tuple) else held
                    plain = last_name(holder) in _PLAIN_HOLDERS
                    return [element] if plain and annotates_module(module, element) else None
    return items(module.value(made))


def _says_layers(kept: Kept) -> bool:
    """`self.layers: list[nn.Module] | None`, somewhere in the class, or `layers: list[nn.Module]` in its body."""
    for said in below(kept.cls, ast.AnnAssign):
        if of_self(said.target) != kept.name and not is_name(said.target, kept.name):
            continue
        for holder in below(said.annotation, ast.Subscript):
            element = holder.slice.elts[-1] if isinstance(holder.slice, ast.Tuple) else holder.slice
            if last_name(holder.value) in _PLAIN_HOLDERS and annotates_module(kept.module, element):
                return True
    return False


def _looks_like_layer(item: ast.expr) -> bool:
    """`make_block(...)`, `get_layer(config)`: a maker that cannot be seen, named after what it makes."""
    return isinstance(item, ast.Call) and _MAKES_LAYERS.search(last_name(item)) is not None


def _elements_called(kept: Kept) -> bool:
    """`for layer in self.layers: x = layer(x)`, `self.layers[i](x)`."""
    for node, up in kept.uses():
        match up:
            case ast.Subscript() if isinstance(kept.module.parent(up), ast.Call):
                return getattr(kept.module.parent(up), "func", None) is up
            case ast.For(ast.Name(name), loop) if loop is node:
                if any(is_name(c.func, name) and c.args for c in below(up, ast.Call)):
                    return True
    return False


def _on_the_spot(item: ast.expr) -> bool:
    return isinstance(item, ast.Call | ast.Name | ast.Attribute)


def _added(kept: Kept) -> Iterator[ast.expr]:
    """What is put into the container later: append, insert, extend, +=, and assignment to a key."""
    for node in walk(kept.cls):
        match node:
            case ast.Call(ast.Attribute(holder, method), [*_, last]) if kept.is_mine(holder):
                if method in {"append", "insert"}:
                    yield last
                elif method in {"extend", "update"}:
                    yield from items(node.args[0]) or ()
            case ast.AugAssign(target, _, ast.List() | ast.ListComp() as more):
                if kept.is_mine(target):
                    yield from items(more) or ()
            case ast.Assign([ast.Subscript(holder), *_], value) if kept.is_mine(holder):
                yield value


def _is_layer(module: Module, item: ast.expr) -> bool:
    """A layer made on the spot, held by a local name that no attribute registers, or named by an annotation."""
    if annotates_module(module, item):
        return True
    match item:
        case ast.Call(ast.Attribute(attr="deepcopy") | ast.Name("deepcopy"), [ast.Name() as given]):
            return _is_handed_layer(module, given)
        case ast.Call(ast.Name() as maker) if (default := _default(module, maker)) is not None:
            return has_state(module, ast.Call(default, item.args, item.keywords))
    if not isinstance(item, ast.Name):
        return has_state(module, item)
    made = module.value(item)
    return made is not item and has_state(module, made) and not _has_attribute(module, item)


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
    return _is_layer(module, given)


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


# -- who registers them after all ------------------------------------------------------------------------------


def _registered(kept: Kept) -> bool:
    return (
        _by_hand(kept.cls)
        or _wrapped(kept)
        or _handed_on(kept)
        or _hidden_on_purpose(kept)
        or _chosen_from(kept)
        or _of_registered(kept)
        or _asked_for_parameters(kept)
        or _only_chosen_from(kept)
        or _deleted(kept)
    )


def _deleted(kept: Kept) -> bool:
    """`del self.x_proj`, when its weights have become one Parameter: the layers were only there to initialise it."""
    return any(isinstance(node.ctx, ast.Del) for node, _ in kept.uses())


def _asked_for_parameters(kept: Kept) -> bool:
    """`self.encoder[name].parameters()`: the author hands them to the optimizer by hand."""
    for node in walk(kept.cls):
        match node:
            case ast.Call(ast.Attribute(ast.Subscript(holder), "parameters")) if kept.is_mine(
                holder
            ):
                return True
    return False


def _only_chosen_from(kept: Kept) -> bool:
    """Every use but the making takes one by a key that is not written down, and forward has none: a table of choices."""
    reads = [(node, up) for node, up in kept.uses() if isinstance(node.ctx, ast.Load)]
    by_key = [
        node
        for node, up in reads
        if isinstance(up, ast.Subscript)
        and isinstance(up.ctx, ast.Load)
        and isinstance(up.slice, ast.Name)
    ]
    inside = [kept.module.function(node) for node, _ in reads]
    forward = any(f is not None and getattr(f, "name", "") == "forward" for f in inside)
    return kept.is_dict and bool(by_key) and len(by_key) == len(reads) and not forward


def _of_registered(kept: Kept) -> bool:
    """`[nn.Sequential(layer) for layer in self.features]`: nothing but layers that the model has already."""
    match kept.made:
        case ast.ListComp(
            ast.Call(args=[ast.Name(layer)]), [ast.comprehension(ast.Name(drawn), source)]
        ):
            return layer == drawn and any(of_self(n) for n in below(source, ast.Attribute))
    return False


def _by_hand(cls: ast.ClassDef) -> bool:
    """add_module, setattr(self, ...), self._modules, or a `parameters` or `train` of its own: the author takes care of it."""
    for node in walk(cls):
        match node:
            case ast.Call(ast.Name("setattr"), [_, _, ast.Call() as value]):
                if last_name(value) != "Parameter":
                    return True
            case ast.Call(ast.Attribute(attr=name) | ast.Name(name)) if name in _REGISTRARS:
                return True
            case ast.Attribute(attr=name) if name in _BY_HAND:
                return True
            case ast.FunctionDef(name) if name in _OWN_METHODS:
                return True
    return False


def _wrapped(kept: Kept) -> bool:
    """The attribute, or the local list behind it, goes into ModuleList, Sequential or another call that may register it."""
    for call in (n for n in below(kept.cls, ast.Call)):
        match call.func:
            case ast.Name(name) if name in _LOOKS and kept.module.resolve(call.func) is None:
                continue
        given = [*call.args, *(k.value for k in call.keywords)]
        if any(kept.is_mine(_container_behind(a)) for a in given) and not _looks(kept, call):
            return True
    values = map(kept.module.value, kept.module.attribute_values(kept.cls, kept.name))
    # None holds the place until the list is made
    made = (v for v in values if not (isinstance(v, ast.Constant) and v.value is None))
    return any(_contents(kept.module, v) is None for v in made)


def _looks(kept: Kept, call: ast.Call) -> bool:
    """A function of the project that goes over the layers, as `init_weights(self.layers)`: it neither returns nor registers them."""
    name = kept.module.resolve(call.func) or last_name(call)
    project = kept.module.project
    function: ast.AST | None = kept.module.functions.get(name)
    if function is None and project is not None:
        found = project.find(name, kept.module)
        function = found[1] if found is not None else None
    if not isinstance(function, ast.FunctionDef):
        return False
    calls = {last_name(n) for n in below(function, ast.Call)}
    returns = any(n.value is not None for n in below(function, ast.Return))
    return not returns and calls.isdisjoint(_REGISTRARS | _CONTAINERS)


def _container_behind(argument: ast.expr) -> ast.expr:
    """The container in `*x`, `list(x.values())`, `x.values()`, `list(x)`."""
    match argument:
        case ast.Starred(inner) | ast.Call(ast.Name("list" | "tuple"), [inner, *_]):
            return _container_behind(inner)
        case ast.Call(ast.Attribute(inner, "values")):
            return inner
    return argument


def _handed_on(kept: Kept) -> bool:
    """`for layer in layers: sequence.append(layer)`: each layer of the local list goes on to where it may be registered."""
    if not isinstance(kept.value, ast.Name):
        return False
    for loop in (n for n in below(kept.cls, ast.For)):
        if kept.value.id in names_in(loop.iter):
            each = names_in(loop.target)
            calls = (n for n in below(loop, ast.Call))
            if any(isinstance(a, ast.Name) and a.id in each for c in calls for a in c.args):
                return True
    return False


def _hidden_on_purpose(kept: Kept) -> bool:
    """`self.teacher = [net]` read as `self.teacher[0]`: the old trick to keep a module out of parameters()."""
    match kept.made:
        case ast.List([_]) | ast.Tuple([_]):
            reads = [up for node, up in kept.uses() if isinstance(node.ctx, ast.Load)]
            return all(
                isinstance(up, ast.Subscript) and kept.module.constant(up.slice) == 0
                for up in reads
            )
    return False


def _chosen_from(kept: Kept) -> bool:
    """`self.net = self.choices[key]`, there or in the method that is asked for it: the one that is used is registered."""
    methods = {m.name: m for m in methods_of(kept.cls)}
    for node in walk(kept.cls):
        asked: ast.AST | None
        match self_assignment(node):
            case _, ast.Call(ast.Attribute(attr=method)):
                asked = methods.get(method)
            case _, asked:
                pass
        for part in walk(asked) if asked is not None else ():
            if isinstance(part, ast.Subscript) and of_self(part.value) == kept.name:
                return True
    return False

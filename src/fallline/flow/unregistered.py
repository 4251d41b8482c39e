"""The layers that a module keeps in a plain list or dict, where nothing registers them after all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from fallline.flow.calls import last_name, names_in, of_self
from fallline.flow.containers import (
    Kept,
    added,
    contents,
    elements_called,
    for_this_pass,
    is_handed_layers,
    is_layer,
    looks_like_layer,
    on_the_spot,
    or_empty,
    says_layers,
    self_assignment,
)
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of, walk

__all__ = ["kept_layers"]

_REGISTRARS = frozenset({"add_module", "register_module", "setattr"})
_CONTAINERS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_BY_HAND = frozenset({"_modules", "__dict__", "__setattr__"})
_OWN_METHODS = frozenset({"parameters", "named_parameters", "__setattr__", "train"})
# Builtins that only look at what they are given.
_LOOKS = frozenset("len enumerate zip range reversed print list sum iter isinstance".split())


def kept_layers(module: Module) -> Iterator[Kept]:
    """The plain lists and dicts of layers that no one registers."""
    statements: list[ast.Assign | ast.AnnAssign] = [*module.all(ast.Assign)]
    for statement in statements + module.all(ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Attribute):  # hot: most assignments end here
            continue
        match statement.value:  # most of what is assigned is no container that is written here
            case ast.Attribute() | ast.Constant() | ast.Call(ast.Attribute()):
                continue
        name, value = self_assignment(statement)
        if name is None or value is None:
            continue
        cls = module.class_(statement)
        if cls is None or not module.is_module_class(cls):
            continue
        value = or_empty(value)
        made = module.value(value)
        kept = Kept(module, cls, statement, name, value, made)
        inside = contents(module, made)
        handed = inside is None and is_handed_layers(kept)
        if not handed and (inside is None or (inside and not any(map(on_the_spot, inside)))):
            continue
        put_in = [*(inside or ()), *added(kept)]
        sure = handed or any(is_layer(module, item) for item in put_in) or says_layers(kept)
        if not sure and not (any(map(looks_like_layer, put_in)) and elements_called(kept)):
            continue
        if not _registered(kept):
            given = made.__class__ is ast.Name and not handed and not any(added(kept))
            yield replace(kept, presumed=not sure, declared=sure and given)


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
    reads = [
        (node, up)
        for node, up in kept.uses()
        if isinstance(node.ctx, ast.Load) and not _asks_for_keys(up)
    ]
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


def _asks_for_keys(use: ast.AST | None) -> bool:
    """`name in self.bodies`, `self.bodies.keys()`: nothing is done with the layers."""
    match use:
        case ast.Compare(ops=[ast.In() | ast.NotIn()]) | ast.Attribute(attr="keys"):
            return True
    return False


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
        if any(kept.is_mine(_container_behind(a)) for a in given):
            if not _looks(kept, call) and not for_this_pass(kept, call):
                return True
    values = map(kept.module.value, kept.module.attribute_values(kept.cls, kept.name))
    # None holds the place until the list is made
    made = (v for v in values if not (isinstance(v, ast.Constant) and v.value is None))
    return any(or_empty(v) is not kept.value and contents(kept.module, v) is None for v in made)


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

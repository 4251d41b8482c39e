"""Which expressions are nn.Modules: constructors, followed through names, attributes, helpers and the project.

A constructor that can be seen is proof. A name alone (`looks_like_model`) is a guess: a finding that rests on nothing else
is a note.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from fallline.flow.calls import last_name, returned, same
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written

__all__ = [
    "MODELS",
    "annotates_module",
    "bases_are",
    "construction",
    "function_called",
    "has_state",
    "is_module",
    "learns",
    "looks_like_model",
    "module_class",
]

_TORCH_MODULE = re.compile(r"torch\.nn\.(modules\.\w+\.|parallel\.(\w+\.)?)?[A-Z]\w*")
_NOT_MODULES = frozenset(
    {"torch.nn.Parameter", "torch.nn.ParameterList", "torch.nn.ParameterDict", "torch.nn.Buffer"}
    | {"torch.nn.UninitializedParameter", "torch.nn.UninitializedBuffer"}
)
_ZOO = re.compile(
    r"torchvision\.models\.[\w.]+|timm\.create_model|transformers\.\w*(Model|For)\w*\.from_(pretrained|config)"
)
# Methods of a module that return the module itself.
_CHAIN = frozenset(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ apply to_empty type".split()
)
MODELS = ("model", "net", "network")
_SAYS_MODEL = re.compile(
    r"(?!(get|make|build|create|set_?up|load|save|init|prepare|wrap|convert)_)(\w+_)?(model|net|network)"
)

# Layers with parameters, buffers or a train/eval mode; the rest of torch.nn can stay out of a module unharmed.
_STATEFUL = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?("
    r"Lazy\w+|(Bil|L)inear|Conv(Transpose)?\dd|\w*BatchNorm(\dd)?|GroupNorm|LayerNorm|RMSNorm|Embedding(Bag)?|"
    r"(RNN|LSTM|GRU)(Cell)?|MultiheadAttention|Transformer\w*|PReLU|Sequential|ModuleList|ModuleDict|(\w+)?Dropout(\dd)?)"
)
_REGISTERS = frozenset({"register_buffer", "register_parameter", "add_module", "register_module"})
_DEPTH = 6
_STARS = 4
_BASES = 4


def module_class(module: Module, node: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project that an expression names, if it is an nn.Module."""
    found: tuple[Module, ast.ClassDef] | None = None
    if isinstance(node, ast.Name) and (local := _own_class(module, node)) is not None:
        found = (module, local)
    elif module.project is not None:
        name = module.resolve(node)
        if name is None and isinstance(node, ast.Name) and node.id[:1].isupper():
            found = _from_a_star(module, node.id)
        elif name and not name.startswith("torch."):
            found = module.project.find_class(name, module)
    return found if found is not None and found[0].is_module_class(found[1]) else None


def bases_are(
    module: Module,
    cls: ast.ClassDef,
    fits: Callable[[Module, ast.ClassDef], bool],
    roots: frozenset[str] = frozenset({"object", "ABC", "abc.ABC"}),
    depth: int = _BASES,
) -> bool:
    """Whether all that a class is derived from is in view, up to `roots`, and fits."""
    for base in cls.bases:
        name = module.resolve(base) or written(base)
        if name in roots or written(base) in roots:
            continue
        local = module.classes.get(name)
        found = (module, local) if local is not None else None
        if found is None and module.project is not None:
            found = module.project.find_class(name, module)
        if found is None or not depth or not fits(*found):
            return False
        if not bases_are(*found, fits, roots, depth - 1):
            return False
    return True


def _from_a_star(module: Module, name: str) -> tuple[Module, ast.ClassDef] | None:
    """A class that `from layers import *` brings in."""
    stars = module.star_imports if len(module.star_imports) <= _STARS else ()
    project = module.project
    found = (project.find_class(f"{star}.{name}", module) for star in stars if project is not None)
    return next((f for f in found if f is not None), None)


def _own_class(module: Module, name: ast.Name) -> ast.ClassDef | None:
    """A class of this file, at its top or inside a function around the name."""
    for up in module.parents(name):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            found = module.classes.get(f"{module.qualname(up)}.{name.id}")
            if found is not None:
                return found
    return module.classes.get(name.id)


def construction(module: Module, node: ast.expr, depth: int = _DEPTH) -> ast.Call | None:
    """The constructor call behind an expression such as `Net(...)`, `Net(...).cuda()`, `nn.DataParallel(net)`."""
    if not isinstance(node, ast.Call) or depth == 0:
        return None
    name = module.resolve(node.func)
    if name is not None and (_is_torch_module(name) or _ZOO.fullmatch(name)):
        return node
    match node:
        case ast.Call(args=[inner, *_]) if name == "torch.compile":
            return construction(module, module.value(inner), depth - 1)
        case ast.Call(ast.Attribute(inner, method)) if method in _CHAIN:
            return construction(module, module.value(inner), depth - 1)
    return node if module_class(module, node.func) is not None else None


def _is_torch_module(name: str) -> bool:
    return _TORCH_MODULE.fullmatch(name) is not None and name not in _NOT_MODULES


def is_module(module: Module, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether an expression is known to be an nn.Module."""
    if depth == 0:
        return False
    match node:
        case ast.Call() if construction(module, node) is not None:
            return True
        case ast.Call(ast.Attribute(inner, method)) if method in _CHAIN:
            return is_module(module, inner, depth - 1)
        case ast.Name():
            return _name_is_module(module, node, depth)
        case ast.Attribute(ast.Name("self"), name):
            cls = module.class_(node)
            values = module.attribute_values(cls, name) if cls is not None else []
            return bool(values) and all(_keeps_module(module, v, node, depth) for v in values)
    return False


def _name_is_module(module: Module, node: ast.Name, depth: int) -> bool:
    scope = module.scope(node)
    bound = module.bindings(node.id, scope) or module.bindings(node.id, None)
    return bool(bound) and all(_binds_module(module, target, node, depth) for target in bound)


def _binds_module(module: Module, target: ast.AST, of: ast.Name, depth: int) -> bool:
    match target, module.parent(target):
        case ast.arg(annotation=annotation), _:
            return annotation is not None and annotates_module(module, annotation)
        case _, ast.Assign(targets, value) if target in targets:
            return _keeps_module(module, value, of, depth)
        case _, (ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value)):
            return _keeps_module(module, value, of, depth)
    return False


def _keeps_module(module: Module, value: ast.expr, of: ast.expr, depth: int) -> bool:
    """An assignment to `of` leaves it a module: a constructor, or a wrapper around what it already was."""
    inner = value
    while isinstance(inner, ast.Call):
        if construction(module, inner, 1) is not None:
            return True
        match inner:
            case ast.Call(ast.Attribute(wrapped, method)) if method in _CHAIN:
                inner = wrapped
            case ast.Call(func, [wrapped, *_]) if module.resolve(func) == "torch.compile":
                inner = wrapped
            case _:
                return False
    return same(inner, of) or is_module(module, inner, depth - 1)


def annotates_module(module: Module, annotation: ast.expr) -> bool:
    """Whether an annotation, or the name of a class, stands for an nn.Module."""
    name = module.resolve(annotation)
    known = name is not None and _is_torch_module(name)
    return known or module_class(module, annotation) is not None


def looks_like_model(node: ast.expr) -> bool:
    """A naming habit: `model`, `self.net`, `teacher_model`. Evidence, not proof."""
    match node:
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            # hot: most names do not end so
            return name.endswith(MODELS) and _SAYS_MODEL.fullmatch(name) is not None
    return False


def has_state(module: Module, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether an expression makes a module with parameters, buffers or a mode of its own."""
    match node:
        case ast.Call(func) if depth and (maker := function_called(module, func)) is not None:
            # `conv(8, 8)`, a function that returns a layer
            home, function = maker
            results = [r for r in returned(home, function) if isinstance(r, ast.Call)]
            return any(has_state(home, result, depth - 1) for result in results)
    call = construction(module, node)
    if call is None or depth == 0:
        return False
    name = module.resolve(call.func) or ""
    if _STATEFUL.fullmatch(name):
        match name.rpartition(".")[2], call.args:
            case (("Sequential" | "ModuleList"), [first, *_]):
                parts = first.elts if isinstance(first, ast.List) else call.args
                return Module.has_star(call) or any(
                    has_state(module, p, depth - 1) or not isinstance(p, ast.Call) for p in parts
                )
        return True
    if _ZOO.fullmatch(name):
        return True
    found = module_class(module, call.func)
    return found is not None and _class_has_state(*found, depth - 1)


def function_called(module: Module, func: ast.expr) -> tuple[Module, ast.FunctionDef] | None:
    """The function of the project, in this file or another, that is called so."""
    found: tuple[Module, ast.AST] | None = None
    match func:
        case ast.Name(name) if name in module.functions:
            found = module, module.functions[name]
        case ast.Name() | ast.Attribute() if module.project is not None:
            name = module.resolve(func) or ""
            if name and not name.startswith("torch."):
                found = module.project.find(name, module)
    if found is not None and isinstance(found[1], ast.FunctionDef):
        return found[0], found[1]
    return None


def learns(home: Module, cls: ast.ClassDef) -> bool:
    """Whether a class makes parameters, or layers that have some: not only buffers and plain operations."""
    return any(
        _is_parameter(home, call)
        or last_name(call) == "register_parameter"
        or has_state(home, call)
        for call in below(cls, ast.Call)
    )


def _is_parameter(home: Module, call: ast.Call) -> bool:
    return home.resolve(call.func) in {"torch.nn.Parameter", "torch.nn.parameter.Parameter"}


def _class_has_state(home: Module, cls: ast.ClassDef, depth: int) -> bool:
    known = home.notes("classes with a state")
    if cls not in known:
        known[cls] = False  # a class that holds itself must not recurse
        known[cls] = _search_state(home, cls, depth)
    found: bool = known[cls]
    return found


def _search_state(home: Module, cls: ast.ClassDef, depth: int) -> bool:
    if any(a.attr == "training" and is_name(a.value, "self") for a in below(cls, ast.Attribute)):
        return True  # it behaves differently in eval mode
    for call in (n for n in below(cls, ast.Call)):
        if _is_parameter(home, call) or last_name(call) in _REGISTERS:
            return True
        if has_state(home, call, depth):
            return True
    bases = (module_class(home, base) for base in cls.bases)
    return depth > 0 and any(
        _class_has_state(*base, depth - 1) for base in bases if base is not None
    )

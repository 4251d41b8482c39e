"""Which expressions are nn.Modules: constructors, followed through names, attributes, helpers and the project.

A constructor that can be seen is proof, and so is what only modules are asked for (`acts_as_module`). A name alone
(`looks_like_model`) is a guess: a finding that rests on nothing else is a note.
"""

from __future__ import annotations

import ast
import re

from fallline.syntax import Module

__all__ = [
    "acts_as_module",
    "construction",
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
    {
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "eval",
        "train",
        "requires_grad_",
        "apply",
        "to_empty",
        "type",
    }
)
_SAYS_MODEL = re.compile(
    r"(?!(get|make|build|create|set_?up|load|save|init|prepare|wrap|convert)_)(\w+_)?(model|net|network)"
)

# Layers with parameters, buffers or a train/eval mode; the rest of torch.nn can stay out of a module unharmed.
_STATEFUL = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?("
    r"Lazy\w+|(Bil|L)inear|Conv(Transpose)?\dd|\w*BatchNorm(\dd)?|GroupNorm|LayerNorm|RMSNorm|Embedding(Bag)?|"
    r"(RNN|LSTM|GRU)(Cell)?|MultiheadAttention|Transformer\w*|PReLU|Sequential|ModuleList|ModuleDict|(\w+)?Dropout(\dd)?)"
)
# What is asked of nothing but a module. `train` is not here: agents and trainers have it too.
_MODULE_METHODS = frozenset(
    {
        "eval",
        "parameters",
        "named_parameters",
        "modules",
        "named_modules",
        "children",
        "named_children",
        "load_state_dict",
        "requires_grad_",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
    }
)
_WRAPPERS = frozenset(
    {
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.compile",
    }
)
_REGISTERS = frozenset({"register_buffer", "register_parameter", "add_module", "register_module"})
_DEPTH = 6


def module_class(module: Module, node: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project that an expression names, if it is an nn.Module."""
    found: tuple[Module, ast.ClassDef] | None = None
    if isinstance(node, ast.Name) and node.id in module.classes:
        found = (module, module.classes[node.id])
    elif module.project is not None:
        name = module.resolve(node)
        found = (
            module.project.find_class(name, module)
            if name and not name.startswith("torch.")
            else None
        )
    return found if found is not None and found[0].is_module_class(found[1]) else None


def construction(module: Module, node: ast.expr, depth: int = _DEPTH) -> ast.Call | None:
    """The constructor call behind an expression such as `Net(...)`, `Net(...).cuda()`, `nn.DataParallel(net)`."""
    if not isinstance(node, ast.Call) or depth == 0:
        return None
    function = node.func
    name = module.resolve(function)
    if name is not None:
        if (_TORCH_MODULE.fullmatch(name) and name not in _NOT_MODULES) or _ZOO.fullmatch(name):
            return node
        if name == "torch.compile" and node.args:
            return construction(module, module.value(node.args[0]), depth - 1)
    if isinstance(function, ast.Attribute) and function.attr in _CHAIN:
        return construction(module, module.value(function.value), depth - 1)
    if module_class(module, function) is not None:
        return node
    return None


def is_module(module: Module, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether an expression is known to be an nn.Module."""
    if depth == 0:
        return False
    if isinstance(node, ast.Call):
        if construction(module, node) is not None:
            return True
        receiver = (
            node.func.value
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHAIN
            else None
        )
        return receiver is not None and is_module(module, receiver, depth - 1)
    if isinstance(node, ast.Name):
        return _name_is_module(module, node, depth)
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        cls = module.class_(node)
        values = module.attribute_values(cls, node.attr) if cls is not None else []
        return bool(values) and all(_keeps_module(module, v, node, depth) for v in values)
    return False


def _name_is_module(module: Module, node: ast.Name, depth: int) -> bool:
    scope = module.scope(node)
    bound = module.bindings(node.id, scope) or module.bindings(node.id, None)
    values: list[ast.expr] = []
    for target in bound:
        if isinstance(target, ast.arg):
            if target.annotation is None or not _annotates_module(module, target.annotation):
                return False
            values.append(node)
            continue
        up = module.parent(target)
        if not isinstance(up, ast.Assign | ast.AnnAssign | ast.NamedExpr) or up.value is None:
            return False
        if isinstance(up, ast.Assign) and target not in up.targets:
            return False
        values.append(up.value)
    return bool(values) and all(v is node or _keeps_module(module, v, node, depth) for v in values)


def _keeps_module(module: Module, value: ast.expr, of: ast.expr, depth: int) -> bool:
    """An assignment to `of` leaves it a module: a constructor, or a wrapper around what it already was."""
    inner = value
    while isinstance(inner, ast.Call):
        if construction(module, inner, 1) is not None:
            return True
        if isinstance(inner.func, ast.Attribute) and inner.func.attr in _CHAIN:
            inner = inner.func.value
        elif module.resolve(inner.func) == "torch.compile" and inner.args:
            inner = inner.args[0]
        else:
            return False
    same = ast.dump(inner).replace("Store()", "Load()") == ast.dump(of).replace("Store()", "Load()")
    return same or is_module(module, inner, depth - 1)


def _annotates_module(module: Module, annotation: ast.expr) -> bool:
    name = module.resolve(annotation)
    return (
        bool(name and _TORCH_MODULE.fullmatch(name) and name not in _NOT_MODULES)
        or module_class(module, annotation) is not None
    )


def acts_as_module(module: Module, node: ast.expr) -> bool:
    """Whether this name or `self.x` is used as only modules are: `model.parameters()`, `model.eval()`.

    Asked in its function or class, and for a parameter also of what the callers in this file pass.
    """
    home: ast.AST | None = module.class_(node) if isinstance(node, ast.Attribute) else None
    scope = module.scope(node)
    if _asked_as_module(module, node, home or scope or module.tree):
        return True
    if not isinstance(node, ast.Name) or not isinstance(
        scope, ast.FunctionDef | ast.AsyncFunctionDef
    ):
        return False
    if not any(isinstance(b, ast.arg) for b in module.bindings(node.id, scope)):
        return False
    return any(
        is_module(module, given)
        or _asked_as_module(module, given, module.scope(given) or module.tree)
        for given in _passed(module, scope, node.id)
    )


def _asked_as_module(module: Module, node: ast.expr, scope: ast.AST) -> bool:
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    key = ast.dump(node)
    for inner in ast.walk(scope):
        if isinstance(inner, ast.Attribute) and inner.attr in _MODULE_METHODS:
            if ast.dump(inner.value) == key:
                return True
        elif isinstance(inner, ast.Call) and module.resolve(inner.func) in _WRAPPERS:
            if inner.args and ast.dump(inner.args[0]) == key:
                return True
    return False


def _passed(
    module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> list[ast.expr]:
    """What the calls of a function in this file give for one of its parameters."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    if name not in names:
        return []
    calls = (
        c
        for c in module.all(ast.Call)
        if isinstance(c.func, ast.Name) and c.func.id == function.name
    )
    given = (Module.argument(call, names.index(name), name) for call in calls)
    return [value for value in given if value is not None]


def looks_like_model(node: ast.expr) -> bool:
    """A naming habit: `model`, `self.net`, `teacher_model`. Evidence, not proof."""
    if isinstance(node, ast.Name):
        return _SAYS_MODEL.fullmatch(node.id) is not None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "self" and _SAYS_MODEL.fullmatch(node.attr) is not None
    return False


def has_state(module: Module, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether an expression makes a module with parameters, buffers or a mode of its own."""
    call = construction(module, node)
    if call is None or depth == 0:
        return False
    name = module.resolve(call.func)
    if name is not None and _STATEFUL.fullmatch(name):
        if (
            name.rpartition(".")[2] in {"Sequential", "ModuleList"}
            and call.args
            and not Module.has_star(call)
        ):
            parts = call.args[0].elts if isinstance(call.args[0], ast.List) else call.args
            return any(
                has_state(module, p, depth - 1) or not isinstance(p, ast.Call) for p in parts
            )
        return True
    if name is not None and _ZOO.fullmatch(name):
        return True
    found = module_class(module, call.func)
    return found is not None and _class_has_state(*found, depth - 1)


def learns(home: Module, cls: ast.ClassDef) -> bool:
    """Whether a class makes parameters, or layers that have some: not only buffers and plain operations."""
    return any(
        home.resolve(call.func) in {"torch.nn.Parameter", "torch.nn.parameter.Parameter"}
        or (isinstance(call.func, ast.Attribute) and call.func.attr == "register_parameter")
        or has_state(home, call)
        for call in ast.walk(cls)
        if isinstance(call, ast.Call)
    )


def _class_has_state(home: Module, cls: ast.ClassDef, depth: int) -> bool:
    known: bool | None = getattr(cls, "has_state", None)
    if known is None:
        cls.has_state = False  # type: ignore[attr-defined]  # a class that holds itself must not recurse
        known = cls.has_state = _search_state(home, cls, depth)  # type: ignore[attr-defined]
    return known


def _search_state(home: Module, cls: ast.ClassDef, depth: int) -> bool:
    for inner in ast.walk(cls):
        if not isinstance(inner, ast.Call):
            continue
        name = home.resolve(inner.func)
        if name in {"torch.nn.Parameter", "torch.nn.parameter.Parameter"}:
            return True
        if isinstance(inner.func, ast.Attribute) and inner.func.attr in _REGISTERS:
            return True
        if has_state(home, inner, depth):
            return True
    bases = (module_class(home, base) for base in cls.bases)
    return depth > 0 and any(
        _class_has_state(*base, depth - 1) for base in bases if base is not None
    )

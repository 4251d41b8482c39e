"""Whether a module computes something else in eval mode than in train mode, as far as its layers can be seen."""

from __future__ import annotations

import ast
import re

from fallline.flow.calls import last_name
from fallline.flow.modules import construction, module_class
from fallline.syntax.modes import layer_has_mode
from fallline.syntax.module import Module
from fallline.syntax.nodes import below, methods_of, walk

__all__ = ["calls_with_mode", "class_has_mode", "made_has_mode", "made_with_mode"]

_MODAL_FUNCTION = re.compile(r"torch\.nn\.functional\.(\w*dropout\w*|batch_norm|rrelu\w*)")
_DEPTH = 6
# Architectures of libraries, by the functions that make them: they have BatchNorm, dropout or both.
_WITH_MODE = re.compile(
    r"^(torchvision\.models\.(\w+\.)*[a-z]\w*|timm\.create_model|pytorch_fid\.inception\.InceptionV3)$"
)


def made_with_mode(module: Module, made: ast.Call) -> bool:
    """`torchvision.models.resnet18()`, `models.__dict__[args.arch]()`: a network of a library that is different in eval mode."""
    match made.func:
        case ast.Subscript(ast.Attribute(of, "__dict__")):
            return module.resolve(of) == "torchvision.models"
    return _WITH_MODE.search(module.resolve(made.func) or "") is not None


def calls_with_mode(module: Module) -> list[ast.Call]:
    """Those of a file."""
    unnamed = module.calls_by_last_name.get("", [])
    return [
        *module.calls_resolved(_WITH_MODE),
        *(call for call in unnamed if made_with_mode(module, call)),
    ]


def made_has_mode(module: Module, made: ast.Call) -> bool | None:
    """Whether what this call makes computes something else in eval mode; None where its layers are not seen."""
    if made_with_mode(module, made):
        return True
    found = module_class(module, made.func)
    return class_has_mode(*found) if found is not None else None


def class_has_mode(home: Module, cls: ast.ClassDef, depth: int = _DEPTH) -> bool | None:
    """Whether a module class has such layers, or asks for its mode; None where it holds something that is not seen."""
    known = home.notes("classes with a mode")
    if cls not in known:
        known[cls] = False  # a class that holds itself must not recurse
        known[cls] = _search(home, cls, depth)
    found: bool | None = known[cls]
    return found


def _search(home: Module, cls: ast.ClassDef, depth: int) -> bool | None:
    if depth == 0:
        return None
    sure = not _holds_what_it_is_given(cls)
    for node in walk(cls):
        match node:
            case ast.Attribute(attr="training"):
                return True
            case ast.Call():
                found = _call(home, node, depth)
                if found:
                    return True
                sure = sure and found is not None
    for base in cls.bases:
        name = home.resolve(base)
        if name in {"torch.nn.Module", "torch.nn.modules.module.Module"}:
            continue
        parent = module_class(home, base)
        above = class_has_mode(*parent, depth - 1) if parent is not None else None
        if above:
            return True
        sure = sure and above is not None
    return False if sure else None


def _call(home: Module, call: ast.Call, depth: int) -> bool | None:
    name = home.resolve(call.func) or ""
    if name.startswith("torch."):
        last = name.rpartition(".")[2]
        if _MODAL_FUNCTION.fullmatch(name):
            return True
        return construction(home, call) is not None and layer_has_mode(
            last, dropout=any(k.arg in {"dropout", None} for k in call.keywords)
        )
    made = module_class(home, call.func)
    if made is not None:
        return class_has_mode(*made, depth - 1)
    if name and "." in name and not name.startswith(("math.", "numpy.", "functools.", "copy.")):
        return None  # a library may make anything
    written = last_name(call)
    return None if written[:1].isupper() or re.search(r"make|build|create|get_", written) else False


def _holds_what_it_is_given(cls: ast.ClassDef) -> bool:
    """`self.backbone = backbone`, called later: any module may be behind it."""
    made = next((f for f in methods_of(cls) if f.name == "__init__"), None)
    if made is None:
        return False
    given = {a.arg for a in below(made.args, ast.arg)}
    kept: set[str] = set()
    for node in walk(made):
        match node:
            case ast.Assign(targets, ast.Name(name)) if name in given:
                kept |= {t.attr for t in targets if isinstance(t, ast.Attribute)}
    called = (n.func for n in below(cls, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr in kept for f in called)

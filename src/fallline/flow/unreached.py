"""Code of a project that nobody meets: a class, function or method that nothing uses, and a file that nothing imports.

Asked of a project that is run, not of a package that others install: there any public name may be used by somebody else.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from fallline.syntax import Module
from fallline.syntax.nodes import methods_of
from fallline.syntax.once import once

__all__ = ["published", "unreached"]

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Whoever looks a name up while the program runs may mean any: `models.__dict__[args.arch]`.
_BY_NAME = re.compile(
    r"__dict__\[|(?<![.\w])(?<!def )((globals|locals|vars)\([\w.]*\)\s*(\[|\.get)|(eval|exec|__import__|get_class|locate|instantiate)\()|\bimport_module\("
    r"|\bgetattr\((?!\s*(self|args?|opts?|cfg|config|torch|nn|F|optim|hparams|params)\b)"
)
_BY_PATH = ("import_module", "__import__", "pkgutil")  # every file of a folder, perhaps
_COMMENT = re.compile(r"(?m)#.*$")
_INSTALLS = re.compile(r"find_(namespace_)?packages|\b(packages|py_modules)\s*=")
_NAMED = re.compile(r"\bname\s*=\s*[\"']([\w.-]+)[\"']")
_OFFERED = re.compile(r"\b(classifiers|project_urls|long_description|keywords)\b|\[project\.urls\]")
_DEEPEST = 5
_MOST = 24  # files that are looked into


def unreached(module: Module, line: int) -> bool:
    """Whether a line is in a definition that nothing in the project uses, or in a file that nothing imports where others of its folder are imported."""
    around = _around(module, line)
    if around is None or module.project is None or module.path.endswith(".ipynb"):
        return False
    # the file itself first: what other files say costs a search, and has to be asked again when they change
    own = around.name in _used_here(module)
    idle = not own and _idle(module, around)
    return (idle or _in_an_idle_method(module, around, line)) and not published(module)


# What a method is called by where no code of the project does: `model(x)` calls `forward`.
_CALLED_BY_OTHERS = re.compile(r"__\w+__|forward|train|eval|step|main|run|fit|call|setup|teardown|on_\w+|\w+_(start|end)|(train|validation|test|predict|training)_step|collate\w*|reset_parameters|extra_repr")  # fmt: skip
_PLAIN_BASES = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "object", "abc.ABC"})


def _in_an_idle_method(module: Module, around: _Definition, line: int) -> bool:
    """Whether a line is in a method that nothing in the project names, of a class that others make and use."""
    if not isinstance(around, ast.ClassDef) or not module.bases(around) <= _PLAIN_BASES:
        return False
    method = next((m for m in methods_of(around) if m.lineno <= line <= (m.end_lineno or 0)), None)
    return method is not None and method.name in _idle_methods(module, around)


@once
def _idle_methods(module: Module, cls: ast.ClassDef) -> frozenset[str]:
    project = module.project
    assert project is not None
    here = _plain(module.source.text)
    known = [m for m in methods_of(cls) if not m.decorator_list]
    idle = {
        m.name for m in known if not _CALLED_BY_OTHERS.fullmatch(m.name) and not _said(m.name, here)
    }
    if not idle or _BY_NAME.search(here):
        return frozenset()
    made = re.compile(rf"(?<!class )\b{re.escape(cls.name)}\(")
    texts = [_plain(text) for _, text in project.naming(module, cls.name)]
    if not any(made.search(text) for text in (here, *texts)) or any(map(_BY_NAME.search, texts)):
        return frozenset()
    return frozenset(name for name in idle if not _named_elsewhere(module, name))


def _named_elsewhere(module: Module, method: str) -> bool:
    project = module.project
    assert project is not None
    if project.writes(module, method, code=False):
        return True
    return any(_said(method, _plain(text)) for _, text in project.naming(module, method))


def _plain(text: str) -> str:
    return _COMMENT.sub("", text)


def _said(name: str, text: str) -> bool:
    """Somewhere other than where it is defined."""
    return re.search(rf"(?<!def )\b{re.escape(name)}\b", text) is not None


@once
def _idle(module: Module, around: _Definition) -> bool:
    stem = os.path.splitext(os.path.basename(module.path))[0]
    if re.search(r"[\s()]", stem) and not _begins(module):
        return True  # `core copy 6.py`: no import can name it, and it begins nothing itself
    if module.project is not None and module.project.imports(module):
        return not _used(module, around, frozenset())
    return not _begins(module) and _forgotten(module)


def _used_here(module: Module) -> set[str]:
    """What the statements of a file outside its definitions name, and what these name, and so on."""
    definitions = {n.name: n for n in module.tree.body if isinstance(n, _Definition)}
    left: list[ast.stmt] = [n for n in module.tree.body if not isinstance(n, _Definition)]
    found: set[str] = set()
    while left:
        named = {n.id for n in ast.walk(left.pop()) if isinstance(n, ast.Name)}
        left += [definitions[name] for name in named & definitions.keys() - found]
        found |= named & definitions.keys()
    return found


def _around(module: Module, line: int) -> _Definition | None:
    """The outermost class or function around a line."""
    for node in module.tree.body:
        if isinstance(node, _Definition) and node.lineno <= line <= (node.end_lineno or 0):
            return node
    return None


def published(module: Module) -> bool:
    """The project is installed by others, who use what they like."""
    project = module.project
    assert project is not None
    setups = [t for path, t in project.naming(module, "setup(") if path.endswith("setup.py")]
    built = [t for t in project.writes(module, "build-backend", code=False)]
    if not built and not any(_INSTALLS.search(text) for text in setups):
        return False
    # a project that installs itself in place for its own scripts is not for others
    names = {name for text in (*built, *setups) for name in _NAMED.findall(text)}
    if any(_OFFERED.search(text) for text in (*built, *setups)):
        return True
    told = project.writes(module, "pip install", code=False)
    return any(
        re.search(rf"pip3? install (-\S+ )*{re.escape(n)}\b", text) for n in names for text in told
    )


def _begins(module: Module) -> bool:
    """A script does something by itself; a file that is there for others only defines."""
    return any(
        isinstance(n, ast.If | ast.For | ast.While | ast.With)
        or (isinstance(n, ast.Expr) and not isinstance(n.value, ast.Constant))
        for n in module.tree.body
    )


def _forgotten(module: Module) -> bool:
    """Nothing imports this file or speaks of it, while others of its folder are imported."""
    project = module.project
    assert project is not None
    stem = os.path.splitext(os.path.basename(module.path))[0]
    if stem == "__init__" or project.writes(module, stem, code=False):
        return False
    if any(project.naming(module, way) for way in _BY_PATH):
        return False
    others = project.beside(module, b"")
    if any(f"{stem}." in m.source.text or f'"{stem}"' in m.source.text for m in others):
        return False
    return any(project.imports(other) and not _begins(other) for other in others)


def _used(module: Module, definition: _Definition, passed: frozenset[tuple[str, str]]) -> bool:
    """Whether code that is reached itself names a definition. What looks names up while it runs may mean any."""
    project = module.project
    assert project is not None
    name = definition.name
    here = (module.path, name)
    if here in passed:
        return False
    if len(passed) > _DEEPEST or definition.decorator_list:
        return True
    if project.writes(module, name, code=False):
        return True  # a configuration or an instruction speaks of it
    stem = os.path.splitext(os.path.basename(module.path))[0]
    if any(_BY_NAME.search(_COMMENT.sub("", t)) for _, t in project.naming(module, stem)):
        return True
    whole = re.compile(rf"\b{re.escape(name)}\b")
    naming = [path for path, text in project.naming(module, name) if whole.search(text)]
    if len(naming) > _MOST or any(path.endswith(".ipynb") for path in naming):
        return True
    others = [other for path in naming if (other := project.module_at(path)) is not None]
    for other in (module, *others):
        its_own = other is not module and _defines(other, name)
        for node in _mentions(other, name):
            if its_own and isinstance(node, ast.Name):
                continue  # a class of the same name
            inside = _around(other, node.lineno)
            if inside is definition:
                continue
            if inside is None or _used(other, inside, passed | {here}):
                return True
    return False


def _defines(module: Module, name: str) -> bool:
    return any(isinstance(n, _Definition) and n.name == name for n in module.tree.body)


def _mentions(module: Module, name: str) -> Iterator[ast.expr | ast.alias]:
    """Where a file uses a name: not where it only imports it or lists it in `__all__`."""
    for node in (*module.all(ast.Name), *module.all(ast.Attribute), *module.all(ast.Constant)):
        match node:
            case ast.Name(said) | ast.Attribute(attr=said) | ast.Constant(said) if said == name:
                if not _listed(module, node):
                    yield node
    for alias in module.all(ast.alias):
        if alias.name == name and alias.asname not in {None, name}:
            yield alias


def _listed(module: Module, node: ast.expr) -> bool:
    match module.statement(node):
        case ast.Assign([ast.Name("__all__")]) | ast.AugAssign(ast.Name("__all__")):
            return True
    return False

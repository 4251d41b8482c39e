"""FL802 super-init-missing: a module or parameter is assigned before nn.Module.__init__ has run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import of_self
from fallline.flow.modules import construction
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import is_name, methods_of

_PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})


class SuperInitMissing(Rule):
    code = "FL802"
    name = "super-init-missing"
    severity = Severity.ERROR
    what = "An nn.Module subclass assigns a module or a parameter before `super().__init__()`, or never calls it."
    why = (
        "`nn.Module.__init__` makes the tables that submodules and parameters are registered in. Before it has run, assigning "
        "one raises `AttributeError: cannot assign module before Module.__init__() call`."
    )
    instead = "Make `super().__init__()` the first statement of `__init__`."
    fix_safety = "Adds the call as the first statement, or moves an argument-free call there."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",)
    tokens = (b"__init__",)

    wrong = (
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(4, 2)  # FL802

    def forward(self, x):
        return self.fc(x)
""",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, size):
        self.size = size
        self.scale = nn.Parameter(torch.ones(size))  # FL802
        super().__init__()
        self.fc = nn.Linear(size, 2)

    def forward(self, x):
        return self.fc(x * self.scale)
""",
        """\
import torch


class Positions(torch.nn.Module):
    def __init__(self, size=8):  # FL802
        pass

    def forward(self, x):
        return x + torch.arange(x.shape[-1])
""",
    )
    right = (
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, size):
        self.size = size  # plain values may come first
        super(Net, self).__init__()
        self.fc = nn.Linear(size, 2)
""",
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.fc = nn.Linear(4, 2)


class Wide(Net):
    pass


class Trainer:
    def __init__(self):
        self.model = Net()
""",
        """\
import torch.nn as nn


class Base(nn.Module):
    def setup(self):
        super().__init__()


class Net(Base):
    def __init__(self, build):
        self.setup()
        self.fc = nn.Linear(4, 2)


class Abstract(nn.Module):
    def __init__(self):
        raise NotImplementedError
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for cls in module.all(ast.ClassDef):
            init = next(
                (n for n in methods_of(cls) if n.name == "__init__"),
                None,
            )
            if init is None or not cls.bases or _starts_with_super(init) or _own_call(cls):
                continue
            if not module.is_module_class(cls):
                continue
            raises = "which raises AttributeError. Call `super().__init__()` first."
            called, first = _init_call(init), _first_registration(module, init)
            if called is not None and not _in_branch(module, called, init):
                own = _registered_by_a_method(module, cls, init, called)
                if own is not None:
                    message = f"`self.{own[1]}` is assigned here, and `__init__` gets here before `super().__init__()`, {raises}"
                    yield self._report(module, own[0], message)
                    continue
            if called is not None:
                early = first is not None and first[0].lineno < called.lineno
                if first is not None and early and not _in_branch(module, called, init):
                    message = f"`self.{first[1]}` is assigned before `super().__init__()`, {raises}"
                    yield self._report(module, first[0], message)
                elif not early and (given := _given_before(module, cls, init, called)) is not None:
                    message = f"`self.{given[1]}` is assigned before `super().__init__()`: if it is a module, as its use says, this raises AttributeError. Call `super().__init__()` first."
                    yield self._report(module, given[0], message, Severity.WARNING)
            elif _may_call_elsewhere(module, cls, init):
                continue
            elif first is not None:
                message = f"`self.{first[1]}` is assigned, but {cls.name}.__init__ never calls `super().__init__()`, {raises}"
                yield self._report(module, first[0], message)
            elif _does_something(cls, init):
                message = f"{cls.name}.__init__ never calls `super().__init__()`, so the module cannot be called, moved or trained. Call it first."
                # with nothing but `pass` in it the class is a sketch: whoever calls it finds out at once
                sketch = isinstance(init.body[-1], ast.Pass)
                yield self._report(module, init, message, Severity.INFO if sketch else None)

    def _report(
        self, module: Module, node: ast.stmt, message: str, severity: Severity | None = None
    ) -> Finding:
        at = module.location(node)
        if isinstance(node, ast.FunctionDef):
            header = module.source.lines[node.lineno - 1]
            at = type(at)(at.path, at.line, at.column, at.line, len(header) + 1, at.function)
        return self.finding(at, message, severity=severity)

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        statement = Editor(module).statement_at(finding.at.line)
        init = (
            statement
            if isinstance(statement, ast.FunctionDef)
            else module.function(statement)
            if statement
            else None
        )
        if not isinstance(init, ast.FunctionDef):
            return None
        editor = Editor(module)
        body = (
            init.body[1:]
            if ast.get_docstring(init, clean=False) is not None and len(init.body) > 1
            else init.body
        )
        anchor = body[0]
        if not editor.alone(anchor) or anchor.lineno == init.lineno:
            return None
        call = _init_call(init)
        if call is None:
            if _needs_arguments(module, init):
                return None
            return Fix(
                "Call super().__init__() first",
                (editor.insert_before(anchor, "super().__init__()"),),
            )
        moved = module.statement(call)
        if call.args or call.keywords or not isinstance(moved, ast.Expr) or not editor.alone(moved):
            return None
        return Fix("Move super().__init__() to the front", editor.move_before(moved, anchor))


def _starts_with_super(init: ast.FunctionDef) -> bool:
    """What nearly every __init__ does; looked at first because it is cheap."""
    for statement in init.body[:2]:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(attr=name))):
                return name == "__init__"
            case ast.Expr():
                continue
        return False
    return False


def _own_call(cls: ast.ClassDef) -> bool:
    """A class with its own `__call__` uses nothing that nn.Module.__init__ sets up."""
    return any(isinstance(n, ast.FunctionDef) and n.name == "__call__" for n in cls.body)


def _init_call(init: ast.FunctionDef) -> ast.Call | None:
    """`super().__init__()`, `super(Net, self).__init__()`, `nn.Module.__init__(self)`: any call of an __init__."""
    for node in ast.walk(init):
        match node:
            case ast.Call(ast.Attribute(attr="__init__")):
                return node
    return None


def _first_registration(module: Module, init: ast.FunctionDef) -> tuple[ast.stmt, str] | None:
    """The first `self.x = <module or parameter>`, and its name."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(init):
        match node:
            case ast.Assign(targets, value):
                names = [name for t in targets if (name := of_self(t)) is not None]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                names = [name for t in (target,) if (name := of_self(t)) is not None]
            case _:
                continue
        if names and _registers(module, value):
            found.append((node, names[0]))
    return min(found, key=lambda each: each[0].lineno, default=None)


def _registered_by_a_method(
    module: Module, cls: ast.ClassDef, init: ast.FunctionDef, called: ast.Call
) -> tuple[ast.stmt, str] | None:
    """`self.build(...)` above the call, a method of this class that assigns a module."""
    for statement in init.body:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("self"), name))):
                method = next((m for m in methods_of(cls) if m.name == name), None)
                if method is not None and statement.lineno < called.lineno:
                    if _init_call(method) is None and (
                        found := _first_registration(module, method)
                    ):
                        return found
    return None


def _registers(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.Call(func) if module.resolve(func) in _PARAMETER:
            return True
    return construction(module, value) is not None


def _given_before(
    module: Module, cls: ast.ClassDef, init: ast.FunctionDef, called: ast.Call
) -> tuple[ast.stmt, str] | None:
    """`self.encoder = encoder` above the call, of an argument that this class uses as one uses a network."""
    given = {a.arg for a in (*init.args.args, *init.args.kwonlyargs)}
    if _in_branch(module, called, init):
        return None
    for statement in init.body:
        match statement:
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Name(argument)):
                if (
                    statement.lineno < called.lineno
                    and argument in given
                    and _used_as_module(module, cls, name)
                ):
                    return statement, name
    return None


_ONLY_OF_MODULES = frozenset(
    "parameters named_parameters state_dict load_state_dict requires_grad_".split()
)
_IS_NETWORK = re.compile(r"(^|_)(model|net|network|encoder|decoder|backbone|embedder|generator|discriminator|embedding)$")  # fmt: skip


def _used_as_module(module: Module, cls: ast.ClassDef, name: str) -> bool:
    """`self.encoder.parameters()`; `self.encoder(x)`, of that name."""
    for node in ast.walk(cls):
        match node:
            case ast.Attribute(ast.Attribute(ast.Name("self"), part), asked) if part == name:
                if asked in _ONLY_OF_MODULES:
                    return True
            case ast.Call(ast.Attribute(ast.Name("self"), part), [_, *_]) if part == name:
                if _IS_NETWORK.search(name):
                    return True
    return False


def _in_branch(module: Module, node: ast.AST, init: ast.FunctionDef) -> bool:
    branch = module.enclosing(
        node, ast.If, ast.Try, ast.For, ast.While, ast.FunctionDef, ast.Lambda
    )
    return branch is not init


_OF_MODULES = frozenset(
    "apply register_buffer register_parameter register_module add_module to train eval requires_grad_ parameters modules".split()
)


def _may_call_elsewhere(module: Module, cls: ast.ClassDef, init: ast.FunctionDef) -> bool:
    """`self.setup()` or `super` or `self.__dict__` in the body: somebody else may have initialised the module. Not a method that can be seen and does not."""
    for node in ast.walk(init):
        match node:
            case ast.Name("super" | "setattr"):
                return True
            case ast.Attribute(attr="__dict__" | "__init__" | "__setstate__"):
                return True
            case ast.Call(ast.Attribute(ast.Name("self"), name)) if name not in _OF_MODULES:
                method = find_method(module, cls, name)
                if (
                    method is None
                    or method[1] is init
                    or _INITIALISES.search(method[0].segment(method[1]))
                ):
                    return True
    return bool(init.decorator_list) or _beside_another_base(module, cls)


def _beside_another_base(module: Module, cls: ast.ClassDef) -> bool:
    """`class Gaussian(Policy, MLP)`: whoever is made of it has another base, which initialises the module."""
    project = module.project
    paths = [path for path, _ in project.naming(module, cls.name)] if project is not None else []
    others = [project.module_at(path) for path in paths[:_MOST]] if project is not None else []
    made = [
        other.bases
        for home in (module, *others)
        if home is not None
        for other in home.all(ast.ClassDef)
        for base in other.bases
        if (home is module and is_name(base, cls.name)) or _means(home, base, cls)
    ]
    return bool(made) and all(len(bases) > 1 for bases in made)


def _means(home: Module, base: ast.expr, cls: ast.ClassDef) -> bool:
    """`class Gaussian(Policy)` with `from policies import Policy`, whichever file of the package it is from."""
    name = home.resolve(base) or ""
    if home.project is None or name.rpartition(".")[2] != cls.name:
        return False
    found = home.project.find_class(name, home)
    return found is not None and found[1] is cls


_MOST = 24  # files that are looked into
_INITIALISES = re.compile(r"__init__|super\(|setattr|__dict__|__setstate__")


def _does_something(cls: ast.ClassDef, init: ast.FunctionDef) -> bool:
    """Not only a docstring, `pass`, a bare return or a raise; `pass` counts where the class can be called."""
    called = any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in cls.body)
    if called and isinstance(init.body[-1], ast.Pass):
        return True
    kinds = {type(s) for s in init.body}
    return ast.Raise not in kinds and not kinds <= {ast.Pass, ast.Return, ast.Expr}


def _needs_arguments(module: Module, init: ast.FunctionDef) -> bool:
    """The base is not nn.Module itself, so its __init__ may want arguments."""
    cls = module.class_(init)
    return cls is None or [module.resolve(b) for b in cls.bases] != ["torch.nn.Module"]

"""One parsed file: an index of its nodes, their parents, and what its names stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fallline.location import Location
from fallline.syntax.by_use import is_module_by_name, keeps_layers
from fallline.syntax.index import Index
from fallline.syntax.names import HABITS, SAME, UNKNOWN, constant_of
from fallline.syntax.source import Source
from fallline.syntax.unit_tests import is_benchmark, is_unit_test, times_only
from fallline.syntax.wanted import Wanted, wanted_of

if TYPE_CHECKING:
    from fallline.syntax.project import Project

__all__ = ["Function", "Module"]

Node = TypeVar("Node", bound=ast.AST)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_UNSET: Any = object()
_PLAIN_NAMES = frozenset({"torch", "nn", "F"})
# Files that gather hundreds of others with `import *` are not followed: all would be parsed for one name.
MOST_STARS = 8


class Module:
    """One parsed file. Building it walks the tree once; the rest is looked up."""

    def __init__(
        self, source: Source, tree: ast.Module, project: Project | None = None, name: str = ""
    ) -> None:
        self.source = source
        self.path = source.path
        self.tree = tree
        self.project = project
        self.name = name
        self.index = Index(tree)
        self._resolved: dict[int, str | None] = {}
        self._bases: dict[int, set[str]] = {}
        self._notes: dict[str, dict[Any, Any]] = {}

    # -- the index ---------------------------------------------------------------------------------------------

    @cached_property
    def is_unit_test(self) -> bool:
        """What it does wrong is done to numbers that a test made up: worth a note."""
        return is_unit_test(self.path, self.source.text)

    @cached_property
    def is_benchmark(self) -> bool:
        """What it trains is thrown away: only the time that it takes matters."""
        return is_benchmark(self.path, self.source.text)

    def only_times(self, line: int) -> bool:
        """Whether this line is in a function that runs a training step to time it."""
        around = [f for f in self.functions.values() if f.lineno <= line <= (f.end_lineno or 0)]
        return any(times_only(f.name, self.segment(f)) for f in around)

    def notes(self, about: str) -> dict[Any, Any]:
        """A table of answers, one for each question, kept as long as the file is; see `once`."""
        table = self._notes.get(about)
        if table is None:
            table = self._notes[about] = {}
        return table

    def all(self, *kinds: type[Node]) -> list[Node]:
        """Every node of these types, in source order within each type."""
        found: list[Node] = []
        for kind in kinds:
            found += self.index.by_type.get(kind, ())
        return found

    def parent(self, node: ast.AST) -> ast.AST | None:
        return getattr(node, "parent", None)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the nearest outwards."""
        up = self.parent(node)
        while up is not None:
            yield up
            up = self.parent(up)

    def enclosing(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        """The nearest node around this one of one of these types."""
        up: Any = getattr(node, "parent", None)
        while up is not None and not isinstance(up, kinds):  # hot: no generator here
            up = up.parent
        return up

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement this node is part of."""
        here: ast.AST = node
        while not isinstance(here, ast.stmt):
            up = self.parent(here)
            assert up is not None, "a node outside any statement"
            here = up
        return here

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function (not lambda) this node is in."""
        found = self.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
        assert found is None or isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
        return found

    def class_(self, node: ast.AST) -> ast.ClassDef | None:
        """The class this node is in, also through a method."""
        return self.enclosing(node, ast.ClassDef)

    def qualname(self, node: ast.AST) -> str:
        """The dotted name of the function or class around this node (or of the node itself), '' at the top."""
        parts = (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else []
        )
        parts += [
            up.name
            for up in self.parents(node)
            if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        return ".".join(reversed(parts))

    def location(self, node: ast.AST) -> Location:
        return self.source.location(node, self.qualname(node))

    def segment(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def in_loop(self, node: ast.AST) -> bool:
        """Inside a for or while of the same function."""
        for up in self.parents(node):
            if isinstance(up, ast.For | ast.While | ast.AsyncFor):
                return True
            if isinstance(up, _SCOPES):
                return False
        return False

    # -- names -------------------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name → dotted name, for every import anywhere in the file.

        `from utils import *` also brings what utils imports, `torch` among it.
        """
        found: dict[str, str] = {}
        queue, seen = [self], {self.path}
        while queue:
            home = queue.pop()
            for name, dotted in home._own_imports.items():
                found.setdefault(name, dotted)
            for star in (
                home.star_imports if len(seen) + len(home.star_imports) <= MOST_STARS else ()
            ):
                other = self.project.find_module(star, home) if self.project is not None else None
                if other is not None and other.path not in seen:
                    seen.add(other.path)
                    queue.append(other)
        if self.star_imports:
            # what a star brings may be out of sight; nobody calls anything else by these names
            found |= {n: d for n, d in self._habits(found).items() if n in _PLAIN_NAMES}
            return found
        return found | self._habits(found)

    def _habits(self, imported: dict[str, str]) -> dict[str, str]:
        """What a fragment leaves out, because everybody knows it: `torch`, `nn`, `F`. Nothing in it defines them."""
        missing = set(filter(self.source.spells, HABITS.keys() - imported.keys()))
        read = missing.intersection([n.id for n in self.all(ast.Name)]) if missing else missing
        if not read:
            return {}
        made = self.functions.keys() | self.classes.keys()
        unbound = {n for n in read - made if not self.bindings(n, None)}
        return {n: d for n, d in HABITS.items() if n in unbound}

    @cached_property
    def _own_imports(self) -> dict[str, str]:
        found: dict[str, str] = {}
        package = (
            self.name if self.source.path.endswith("__init__.py") else self.name.rpartition(".")[0]
        )
        for node in self.all(ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
                else:
                    found[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
        for imported in self.all(ast.ImportFrom):
            base = imported.module or ""
            if imported.level:
                parts = package.split(".") if package else []
                parts = parts[: len(parts) - imported.level + 1]
                base = ".".join([*parts, base]) if base else ".".join(parts)
            for alias in imported.names:
                if alias.name != "*":
                    found[alias.asname or alias.name] = (
                        f"{base}.{alias.name}" if base else alias.name
                    )
        return found

    @cached_property
    def star_imports(self) -> list[str]:
        return [
            n.module
            for n in self.all(ast.ImportFrom)
            if n.module and any(a.name == "*" for a in n.names)
        ]

    def resolve(self, node: ast.AST | None) -> str | None:
        """The dotted name an expression stands for through imports: `F.relu` → `torch.nn.functional.relu`.

        None for anything that is not a chain of attributes on an imported name.
        """
        base: Any = node
        while base.__class__ is ast.Attribute:
            base = base.value
        if base.__class__ is not ast.Name or base.id not in self._first_names:
            return None  # hot: `self.layer.weight` and the like are most of what is asked for
        known = self._resolved.get(id(node), _UNSET)
        if known is not _UNSET:
            return known  # type: ignore[no-any-return]
        self._resolved[id(node)] = None  # an alias that names itself must not recurse
        if isinstance(node, ast.Attribute):
            of = self.resolve(node.value)
            found = f"{of}.{node.attr}" if of else None
        else:
            found = self.imports.get(base.id) or self.resolve(self._aliases[base.id])
        self._resolved[id(node)] = found = SAME.get(found, found) if found else None
        return found

    @cached_property
    def _first_names(self) -> frozenset[str]:
        return frozenset(self.imports.keys() | self._aliases.keys())

    @cached_property
    def _aliases(self) -> dict[str, ast.expr]:
        """`softmax = F.softmax` at module level: names assigned once, to a plain name or attribute."""
        seen: dict[str, ast.expr | None] = {}
        for statement in self.tree.body:
            if (
                isinstance(statement, ast.Assign)
                and len(statement.targets) == 1
                and isinstance(statement.targets[0], ast.Name)
            ):
                name = statement.targets[0].id
                alias = (
                    statement.value
                    if isinstance(statement.value, ast.Name | ast.Attribute)
                    else None
                )
                seen[name] = None if name in seen else alias
        return {name: value for name, value in seen.items() if value is not None}

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls whose callee resolves to one of these dotted names."""
        by_name = self._calls_by_name
        return [call for name in names if name in by_name for call in by_name[name]]

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            name = self.resolve(call.func)
            if name is not None:
                found.setdefault(name, []).append(call)
        return found

    def method_calls(self, *names: str) -> list[ast.Call]:
        """Calls of an attribute with one of these names, whatever it is called on: `x.sqrt()`."""
        by_name = self.calls_by_last_name
        return [
            call
            for name in names
            if name in by_name
            for call in by_name[name]
            if isinstance(call.func, ast.Attribute)
        ]

    @cached_property
    def calls_by_last_name(self) -> dict[str, list[ast.Call]]:
        """Calls by the plain name that is called, or the last part of it: `log` of `torch.log(x)`, `x.log()`, `log(x)`."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            called = call.func
            if isinstance(called, ast.Attribute):
                found.setdefault(called.attr, []).append(call)
            else:
                name = called.id if isinstance(called, ast.Name) else ""
                found.setdefault(name, []).append(call)
        return found

    def calls_named(self, wanted: Wanted) -> list[ast.Call]:
        """Calls whose last name is wanted, in source order: a file has far fewer names than calls."""
        return self._chosen(self.calls_by_last_name, wanted)

    def calls_resolved(self, wanted: Wanted) -> list[ast.Call]:
        """The same of the dotted names that they resolve to."""
        return self._chosen(self._calls_by_name, wanted)

    def _chosen(self, by_name: dict[str, list[ast.Call]], wanted: Wanted) -> list[ast.Call]:
        lists = [by_name[name] for name in wanted_of(by_name, wanted)]
        return self.index.sorted([call for calls in lists for call in calls])

    def call_at(self, at: Location) -> ast.Call | None:
        """The call that is at this place: where a fix finds again what its finding pointed at."""
        on_line = self._calls_by_line.get(at.line, [])
        exact = [
            c
            for c in on_line
            if self.source.location(c)
            == Location(at.path, at.line, at.column, at.end_line, at.end_column)
        ]
        return exact[0] if exact else on_line[0] if len(on_line) == 1 else None

    @cached_property
    def _calls_by_line(self) -> dict[int, list[ast.Call]]:
        found: dict[int, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            found.setdefault(call.lineno, []).append(call)
        return found

    def spelling(self, dotted: str) -> str | None:
        """How this file can write a dotted name through its imports: `torch.nn.ModuleList` → `nn.ModuleList`."""
        best: str | None = None
        for local, meant in self.imports.items():
            if dotted == meant or dotted.startswith(meant + "."):
                written = local + dotted[len(meant) :]
                best = written if best is None or len(written) < len(best) else best
        return best

    # -- definitions -------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods by qualified name."""
        found: list[ast.FunctionDef | ast.AsyncFunctionDef] = [*self.all(ast.FunctionDef)]
        found += self.all(ast.AsyncFunctionDef)
        return {self.qualname(n): n for n in found}

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes by qualified name."""
        return {self.qualname(n): n for n in self.all(ast.ClassDef)}

    def bases(self, node: ast.ClassDef) -> set[str]:
        """Dotted names of all base classes that can be seen, through classes of the project too."""
        known = self._bases.get(id(node))
        if known is not None:
            return known
        found: set[str] = set()
        self._bases[id(node)] = found
        queue: list[tuple[Module, ast.ClassDef]] = [(self, node)]
        seen: set[int] = set()
        while queue:
            home, cls = queue.pop()
            if id(cls) in seen:
                continue
            seen.add(id(cls))
            for base in cls.bases:
                target = base.value if isinstance(base, ast.Subscript) else base
                name = home.resolve(target)
                if isinstance(target, ast.Name) and target.id in home.classes:
                    queue.append((home, home.classes[target.id]))
                elif name is not None:
                    found.add(name)
                    where = home.project.find_class(name, home) if home.project else None
                    if where is not None:
                        queue.append(where)
        return found

    def is_module_class(self, node: ast.ClassDef) -> bool:
        """Whether a class is an nn.Module, as far as can be seen, or by its use where a base cannot be seen."""
        known = self.notes("classes that are modules")
        if node not in known:
            bases = self.bases(node)
            known[node] = any(map(is_module_by_name, bases)) or (
                bool(bases) and keeps_layers(node, self.resolve) and self._has_unseen_base(bases)
            )
        found: bool = known[node]
        return found

    def _has_unseen_base(self, bases: set[str]) -> bool:
        return any(
            "." in base and (self.project is None or self.project.find_class(base, self) is None)
            for base in bases
        )

    def is_function_class(self, node: ast.ClassDef) -> bool:
        """Whether a class is a torch.autograd.Function."""
        return bool(
            self.bases(node)
            & {"torch.autograd.Function", "torch.autograd.function.InplaceFunction"}
        )

    # -- values ------------------------------------------------------------------------------------------------

    def bindings(self, name: str, scope: ast.AST | None) -> list[ast.AST]:
        """The statements (or arguments, or loop and with targets) that bind `name` in this function or at the top."""
        return self._bindings.get((id(scope) if scope is not None else 0, name), [])

    @cached_property
    def _bindings(self) -> dict[tuple[int, str], list[ast.AST]]:
        found: dict[tuple[int, str], list[ast.AST]] = {}
        stored = [name for name in self.all(ast.Name) if name.ctx.__class__ is ast.Store]
        for node, scope in self.index.scoped(stored, _SCOPES):
            found.setdefault((id(scope) if scope is not None else 0, node.id), []).append(node)
        for arg, scope in self.index.scoped(self.all(ast.arg), _SCOPES):
            found.setdefault((id(scope), arg.arg), []).append(arg)
        return found

    def attribute_values(self, cls: ast.ClassDef, name: str) -> list[ast.expr]:
        """Everything that the methods of a class assign to `self.<name>`, in source order."""
        return self._attribute_values.get((id(cls), name), [])

    @cached_property
    def _attribute_values(self) -> dict[tuple[int, str], list[ast.expr]]:
        found: dict[tuple[int, str], list[ast.expr]] = {}
        assigned = [(t, s.value) for s in self.all(ast.Assign) for t in s.targets]
        assigned += [(s.target, s.value) for s in self.all(ast.AnnAssign) if s.value is not None]
        for target, value in assigned:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ):
                cls = self.class_(target)
                if cls is not None:
                    found.setdefault((id(cls), target.attr), []).append(value)
        return found

    def scope(self, node: ast.AST) -> ast.AST | None:
        """The function or lambda this node runs in; None at module (or class) level."""
        return self.enclosing(node, *_SCOPES)

    def value(self, node: ast.expr) -> ast.expr:
        """Follow a plain local name to the one expression it was assigned, if there is just one; else itself."""
        seen = 0
        here = node
        while isinstance(here, ast.Name) and seen < 5:
            scope = self.scope(here)
            bound = self.bindings(here.id, scope)
            if not bound and scope is not None:
                bound = self.bindings(here.id, None)
            if len(bound) != 1 or not isinstance(bound[0], ast.Name):
                return here
            target = bound[0]
            up = self.parent(target)
            if isinstance(up, ast.Assign) and len(up.targets) == 1 and up.targets[0] is target:
                here = up.value
            elif isinstance(up, ast.AnnAssign) and up.target is target and up.value is not None:
                here = up.value
            elif isinstance(up, ast.NamedExpr):
                here = up.value
            else:
                return here
            seen += 1
        return here

    def constant(self, node: ast.expr | None) -> Any:
        """The number, string, bool or None an expression stands for; the class `Module` itself when unknown.

        Follows names to their single assignment and does plain arithmetic.
        """
        found = constant_of(self, node)
        return Module if found is UNKNOWN else found

    def number(self, node: ast.expr | None) -> float | None:
        """The number an expression stands for, where it can be seen."""
        found = self.constant(node)
        return (
            float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
        )

    @staticmethod
    def argument(call: ast.Call, position: int | None, *keywords: str) -> ast.expr | None:
        """An argument by position or keyword; None where it is absent or hidden behind * or **, and for a method's own `self` (-1)."""
        for keyword in call.keywords:
            if keyword.arg in keywords:
                return keyword.value
        if position is None or not 0 <= position < len(call.args):
            return None
        hidden = any(isinstance(a, ast.Starred) for a in call.args[: position + 1])
        return None if hidden else call.args[position]

    @staticmethod
    def has_star(call: ast.Call) -> bool:
        """Whether arguments are hidden behind * or **."""
        return any(isinstance(a, ast.Starred) for a in call.args) or any(
            k.arg is None for k in call.keywords
        )

"""Parts of a model that a hand-made list of parameters leaves out: by a filter on names, or by naming the parts one by one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import last_name, of_self
from fallline.flow.modules import has_state, learns, module_class
from fallline.flow.recording import under_no_grad
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of, written

__all__ = ["LeftOut", "filtered_out", "not_listed"]

# Heads of Transformers that read the pooled output.
_POOLED = re.compile(
    r"For(SequenceClassification|MultipleChoice|NextSentencePrediction|PreTraining)$"
)
_BUILDS = re.compile(r"optim", re.IGNORECASE)
_FROZEN = re.compile(r"requires_grad|freeze|frozen|\.eval\(")


@dataclass(frozen=True)
class LeftOut:
    """Where parameters are left out, and of what."""

    node: ast.AST
    name: str
    norm: bool = False


def filtered_out(module: Module) -> Iterator[LeftOut]:
    """`[n for n in named if "pooler" not in n[0]]` for a model whose head reads the pooler."""
    for comp in module.all(ast.ListComp):
        for name in _names_refused(comp):
            text = module.source.text
            other_group = re.search(rf"""["']{re.escape(name)}["']\s+in\b""", text)
            if (
                _is_used(module, name)
                and not other_group
                and not _FROZEN.search(_around(module, name))
            ):
                yield LeftOut(comp, name)


def _names_refused(comp: ast.ListComp) -> Iterator[str]:
    for test in (t for g in comp.generators for t in g.ifs):
        match test:
            case ast.Compare(ast.Constant(str(name)), [ast.NotIn()], [_]):
                yield name


def _is_used(module: Module, name: str) -> bool:
    """The pooler, where the file's model has a head on it and no other head that does without."""
    made = {
        part
        for call in module.method_calls("from_pretrained")
        for part in (module.resolve(call.func) or "").split(".")
        if "For" in part
    }
    return name == "pooler" and bool(made) and all(_POOLED.search(part) for part in made)


def _around(module: Module, name: str) -> str:
    """The lines that speak of it."""
    return "\n".join(line for line in module.source.text.splitlines() if name in line)


def not_listed(module: Module) -> Iterator[LeftOut]:
    """A method that names the parts to train, and a part that `forward` uses and no method names."""
    if module.source.text.count(".parameters(") < 2:
        return
    for cls in module.classes.values():
        if not module.is_module_class(cls):
            continue
        for method in methods_of(cls):
            build = _builds_from_parts(method)
            if build is None:
                continue
            spoken = {n.attr for n in below(method, ast.Attribute)}
            for part in _parts(module, cls):
                if part not in spoken and _trains(module, cls, part):
                    yield LeftOut(build, part, _is_norm(module, cls, part))


def _builds_from_parts(method: ast.FunctionDef) -> ast.Call | None:
    """The call that makes an optimizer in a method that lists `self.a.parameters()`, `self.b.parameters()`."""
    listed: set[str] = set()
    builds: list[ast.Call] = []
    for node in below(method, ast.Call):
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), "parameters" | "named_parameters")):
                return None
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), part), "parameters")):
                listed.add(part)
            case ast.Call() if _BUILDS.search(written(node.func)):
                builds.append(node)
    builds = [b for b in builds if b.args or b.keywords]
    return min(builds, key=lambda b: b.lineno) if len(listed) >= 2 and builds else None


def _parts(module: Module, cls: ast.ClassDef) -> list[str]:
    """The attributes that hold a layer with parameters, made in this class."""
    stored = (n for n in below(cls, ast.Attribute) if isinstance(n.ctx, ast.Store))
    names = dict.fromkeys(name for n in stored if (name := of_self(n)) is not None)
    return [
        name
        for name in names
        if any(
            isinstance(v, ast.Call) and has_state(module, v) and _learns(module, v)
            for v in module.attribute_values(cls, name)
        )
    ]


def _is_norm(module: Module, cls: ast.ClassDef, part: str) -> bool:
    made = [v for v in module.attribute_values(cls, part) if isinstance(v, ast.Call)]
    return bool(made) and all("Norm" in last_name(v) for v in made)


def _learns(module: Module, made: ast.Call) -> bool:
    """A layer of the project's own may have buffers only."""
    found = module_class(module, made.func)
    return found is None or learns(*found)


def _trains(module: Module, cls: ast.ClassDef, part: str) -> bool:
    """`forward` calls it with a gradient, and nothing freezes it."""
    forward = next((m for m in methods_of(cls) if m.name == "forward"), None)
    calls = [
        n
        for n in (ast.walk(forward) if forward is not None else ())
        if isinstance(n, ast.Call) and of_self(n.func) == part
    ]
    lines = "\n".join(
        written(s) for s in below(cls, ast.Expr, ast.For) if f"self.{part}" in written(s)
    )
    return any(not under_no_grad(module, c) for c in calls) and not _FROZEN.search(lines)

"""What an option of a program is when nobody sets it: `--accumulation-steps` of its parser, a field of its configuration class, an argument."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["default_of", "off_at_zero", "offered", "stays"]

_HOLDS_OPTIONS = re.compile(r"(?i)arg|opt(ion)?s?$|conf|cfg|param|setting|pars|flags")


def default_of(module: Module, name: str) -> float | None:
    """The number that an option of this name has by default in this file, or in one that it takes its options from.

    None where no such option, or no number, is seen.
    """
    homes = (module, *_elsewhere(module))
    return next((d for home in homes if (d := _defaults(home).get(name)) is not None), None)


@once
def _elsewhere(module: Module) -> list[Module]:
    """The files of the project that are called after options, and that this one imports from: `from tools.argparse import get_args`."""
    known: list[Module] = []
    for dotted in {*module.imports.values()} if module.project is not None else ():
        for path in (dotted, dotted.rpartition(".")[0]):
            if _HOLDS_OPTIONS.search(path.rpartition(".")[2]):
                found = module.project.find_module(path, module)  # type: ignore[union-attr]
                known += [found] if found is not None else []
    return known


@once
def _defaults(module: Module) -> dict[str, float]:
    known: dict[str, float] = {}
    for call in module.method_calls("add_argument"):
        number = _number(module, next((k.value for k in call.keywords if k.arg == "default"), None))
        if number is not None:
            known |= dict.fromkeys(_names(call), number)
    for field in module.all(ast.AnnAssign):
        number = _number(module, field.value)
        if isinstance(field.target, ast.Name) and number is not None:
            if isinstance(module.parent(field), ast.ClassDef):
                known[field.target.id] = number
    for name, number in (*_looked_up(module), *_arguments(module)):
        known.setdefault(name, number)
    return known


def _looked_up(module: Module) -> Iterator[tuple[str, float]]:
    """`config.get("accum_steps", 1)`, `getattr(args, "accum_steps", 1)`: what is taken where nobody says anything."""
    for call in module.all(ast.Call):
        match call:
            case ast.Call(ast.Attribute(attr="get"), [ast.Constant(str(name)), default]):
                pass
            case ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), default]):
                pass
            case _:
                continue
        number = module.number(default)
        if number is not None:
            yield name, number


def _arguments(module: Module) -> Iterator[tuple[str, float]]:
    """`def train(model, accumulation_steps=1)`."""
    for function in module.functions.values():
        spec = function.args
        positional = [*spec.posonlyargs, *spec.args]
        for argument, default in (
            *zip(reversed(positional), reversed(spec.defaults), strict=False),
            *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
        ):
            number = module.number(default) if default is not None else None
            if number is not None:
                yield argument.arg, number


def stays(modules: Sequence[Module], name: str, number: float, *, code: bool = False) -> bool:
    """Whether an option is this number wherever the project gives it one: its defaults, its configurations, how it is run.

    `code`: also in files that are not on the way here.
    """
    defaults = {default_of(module, name) for module in modules} - {None}
    given = {n for module in modules for n in _given(module).get(name, ())}
    return defaults | given | _written(modules[0], name, code) == {number}


_IF_ANY = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?: (?P<asked>>|==|!=) 0(?:\.0*)?)?")
# Where a run begins, which machine it is on: 0 is one of many, or the first.
_POSITION = re.compile(r"(?i)epoch|step|iter|start|begin|resume|last|first|idx|index|count|seed|rank|gpu|device|node|world|worker|proc|^\w$")  # fmt: skip


def off_at_zero(modules: Sequence[Module], test: str) -> bool | None:
    """The answer of a test like `args.clip > 0` in a project that has 0 for the option wherever it says one; None of any other test."""
    asked = _IF_ANY.fullmatch(test)
    name = asked["name"].rpartition(".")[2] if asked is not None else ""
    if asked is None or _POSITION.search(name) or not stays(modules, name, 0):
        return None
    return asked["asked"] == "=="


@once
def _written(module: Module, name: str, code: bool) -> set[float]:
    """The numbers that scripts, instructions and configurations give an option: `--accum-steps 4`, `accum_steps: 4`."""
    spelled = name.replace("_", "[-_]")
    number = re.compile(
        rf"(?i)\b{spelled}\b[\"'`]?(?:[ \t]*:[ \t]*(?:float|int)\b)?[ \t]*[ \t:=|][ \t]*[\"'`]?(\d*\.?\d+)"
    )
    # `# grad_accumulation: 9` is what a configuration said once
    past = re.compile(rf"(?m)^[ \t]*#[ \t]*{spelled}[ \t]*[:=].*$")
    return {
        float(n)
        for text in _speaking_of(module, name, code)
        for n in number.findall(past.sub("", text))
    }


@once
def _speaking_of(module: Module, name: str, code: bool) -> list[str]:
    """The texts of the project that speak of an option, without the commands that run other programs."""
    if module.project is None:
        return []
    texts = module.project.writes(module, name, code)
    if not module.method_calls("add_argument"):
        return texts
    others = {
        os.path.basename(path)
        for path, text in module.project.naming(module, name)
        if "add_argument" in text and re.search(rf"--{name.replace('_', '[-_]')}\b", text)
    } - {os.path.basename(module.path)}
    if not others:
        return texts
    # each has options of its own: what one is run with says nothing of the other
    runs = re.compile(rf"(?m)^.*\b({'|'.join(map(re.escape, sorted(others)))})(.*\\[ \t]*\n)*.*$")
    return [runs.sub("", text) for text in texts]


def offered(modules: Sequence[Module], name: str) -> bool:
    """Whether a program may have an option of this name: files that several programs share ask for `getattr(args, "fsdp", False)`.

    It has none where its parser is in view, and nothing else on the way or in a configuration gives it one.
    """
    homes = {id(home): home for module in modules for home in (module, *_elsewhere(module))}
    parsers = [home for home in homes.values() if home.method_calls("add_argument")]
    if not parsers or any(_shares_its_parser(home) for home in parsers):
        return True
    if any(name in _named(home) for home in homes.values()):
        return True
    spelled = name.replace("_", "[-_]")
    turned_on = re.compile(
        rf"--{spelled}\b|\b{spelled}\b[\"'`]?[ \t]*[:=][ \t]*(?!(?i:false|no|off|none|null|0)\b)[^\s:=]"
    )
    texts = [text for home in parsers for text in _speaking_of(home, name, False)]
    return any(turned_on.search(text) for text in texts)


def _shares_its_parser(module: Module) -> bool:
    """`add_model_args(parser)`, `ArgumentParser(parents=[base])`: others give it options too."""
    for call in module.all(ast.Call):
        made = last_name(call)
        if made == "ArgumentParser" and any(k.arg == "parents" for k in call.keywords):
            return True
        handed = any(isinstance(a, ast.Name) and a.id.endswith("parser") for a in call.args)
        if handed and "parse" not in made:
            return True
    return False


@once
def _named(module: Module) -> frozenset[str]:
    """What this file calls its options, fields, arguments and attributes: not what it only asks for, `getattr(args, "fsdp", False)`."""
    found = {name for call in module.method_calls("add_argument") for name in _names(call)}
    found |= {name for name, _ in _assignments(module)}
    found |= {a.arg for a in module.all(ast.arg)}
    for node in module.all(ast.AnnAssign):
        match node.target:
            case ast.Name(name) | ast.Attribute(attr=name):
                found.add(name)
    for held in module.all(ast.Dict):
        found |= {k.value for k in held.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}  # fmt: skip
    for stored in module.all(ast.Subscript):
        if isinstance(stored.ctx, ast.Store) and isinstance(stored.slice, ast.Constant):
            found.add(str(stored.slice.value))
    return frozenset(found)


@once
def _given(module: Module) -> dict[str, set[float]]:
    """The numbers that this file gives its options: `train(accumulation_steps=4)`, `args.accum = 8`."""
    known: dict[str, set[float]] = {}
    for name, value in _assignments(module):
        number = module.number(value)
        if number is not None:
            known.setdefault(name, set()).add(number)
    return known


def _assignments(module: Module) -> Iterator[tuple[str, ast.expr]]:
    for call in module.all(ast.Call):
        yield from ((k.arg, k.value) for k in call.keywords if k.arg is not None)
    for statement in module.all(ast.Assign):
        for target in statement.targets:
            match target:
                case ast.Name(name) | ast.Attribute(attr=name):
                    yield name, statement.value


def _names(call: ast.Call) -> list[str]:
    """`args.grad_accum` of `add_argument("-g", "--grad-accum")`."""
    given = [a.value for a in call.args if isinstance(a, ast.Constant)]
    given += [
        k.value.value
        for k in call.keywords
        if k.arg == "dest" and isinstance(k.value, ast.Constant)
    ]
    return [n.lstrip("-").replace("-", "_") for n in given if isinstance(n, str)]


def _number(module: Module, value: ast.expr | None) -> float | None:
    match value:
        case ast.Call(func=ast.Name("field" | "Field"), keywords=keywords):
            return _number(module, next((k.value for k in keywords if k.arg == "default"), None))
        case None:
            return None
    return module.number(value)

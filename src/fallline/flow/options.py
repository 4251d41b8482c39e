"""What an option of a program is when nobody sets it: `--accumulation-steps` of its parser, a field of its configuration class, an argument."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["default_of", "stays"]

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


@once
def _written(module: Module, name: str, code: bool) -> set[float]:
    """The numbers that scripts, instructions and configurations give an option: `--accum-steps 4`, `accum_steps: 4`."""
    texts = module.project.writes(module, name, code) if module.project is not None else ()
    spelled = name.replace("_", "[-_]")
    number = re.compile(
        rf"(?i)\b{spelled}\b[\"'`]?(?:[ \t]*:[ \t]*(?:float|int)\b)?[ \t]*[ \t:=|][ \t]*[\"'`]?(\d*\.?\d+)"
    )
    # `# grad_accumulation: 9` is what a configuration said once
    past = re.compile(rf"(?m)^[ \t]*#[ \t]*{spelled}[ \t]*[:=].*$")
    return {float(n) for text in texts for n in number.findall(past.sub("", text))}


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

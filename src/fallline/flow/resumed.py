"""Whether somebody continues from a checkpoint: it is loaded by code that runs, and more than the weights is taken from it."""

from __future__ import annotations

import ast
import re

from fallline.flow.calls import last_name
from fallline.flow.checkpoints import Loaded, Saved, loads, role_of_key
from fallline.syntax import Module
from fallline.syntax.nodes import below, written

__all__ = [
    "has_weights",
    "only_evaluated",
    "restored_somewhere",
    "resumed",
    "says_resume",
    "starts_over",
]

# Whoever continues has to know where: `start_epoch`, `global_step`.
_GOES_ON = re.compile(
    r"resum|restor|continu|restart|(start|begin|init|last|initial|global|from)_?(epoch|step|iter)",
    re.IGNORECASE,
)
_RESUME = re.compile(r"(?i)resume")
_RESTORES = re.compile(r"(?i)opt\w*(\[\w+\])?\.load_state_dict\(")
_EPOCH = re.compile(r"(?i)^ep(och)?")
_COUNTS = frozenset({"range", "trange"})
_STATE = frozenset({"optimizer", "scheduler", "scaler"})
_WEIGHTS = re.compile(
    r"(?i)state|param|weight|(?:model|net|policy|actor|critic|generator|discriminator|encoder|decoder|agent|student|teacher|ema)s?\d*$"
)
_COMMENT = re.compile(r"(?m)#.*$")
# wandb continues with a page of curves, not with a model
_RESUMES = re.compile(
    r"(?im)^(?!.*(wandb|resume_?(run|id)|resume\s*=\s*[\"'](must|allow|auto|never))).*resum"
)


def has_weights(saved: Saved) -> bool:
    """Something in it is a model: answers that were recorded at some step are nothing to continue from."""
    said = " ".join(f"{key} {ast.unparse(value)}" for key, value in saved.entries.items())
    return any(map(_WEIGHTS.search, re.findall(r"\w+", said)))


def restored_somewhere(module: Module) -> bool:
    """Somebody in this file or folder restores an optimizer and continues; else the file is only written, or read to test the best model."""
    beside = module.project.beside(module, b"load_state_dict") if module.project else []
    texts = [_COMMENT.sub("", m.source.text) for m in (module, *beside)]
    restoring = [text for text in texts if _RESTORES.search(text)]
    return any(map(_GOES_ON.search, restoring))


def only_evaluated(module: Module, saved: Saved) -> bool:
    """The program itself reads the file again, and takes nothing but the weights: the best model of a run, to test it."""
    reading = [
        loaded
        for loaded in loads(module)
        if not loaded.escapes and loaded.keys and loaded.keys.keys() <= saved.entries.keys()
    ]
    restored = {role_of_key(key) for loaded in reading for key in loaded.restored()}
    return bool(reading) and not restored & {"optimizer", "counter"}


def starts_over(module: Module, saved: Saved) -> bool:
    """Whatever it is called, the program takes nothing but weights from its files, and counts its epochs from 0: weights to begin with."""
    loops = [n.iter for n in module.all(ast.For) if _EPOCH.search(written(n.target))]
    counted = [c for over in loops for c in below(over, ast.Call) if last_name(c) in _COUNTS]
    anew = len(counted) == len(loops) > 0 and all(
        len(c.args) == 1 or isinstance(c.args[0], ast.Constant) for c in counted
    )
    read = [loaded for loaded in loads(module) if loaded.keys and not loaded.escapes]
    taken = {role_of_key(key) for loaded in read for key in loaded.restored()}
    return anew and bool(read) and not (saved.roles() | taken) & _STATE and "counter" not in taken


def resumed(module: Module, saved: Saved) -> bool:
    """Someone is seen to continue from it. An epoch in a file of weights may only say which one they are of."""
    text = _COMMENT.sub("", module.source.text)
    if _RESUMES.search(text) and re.search(r"(?i)\bload|restore", text):
        return not starts_over(module, saved)
    return any(
        loaded.restored().keys() & saved.entries.keys()
        and "counter" in {role_of_key(k) for k in loaded.restored()}
        and _is_called(module, loaded.call)
        for loaded in loads(module)
    )


def _is_called(module: Module, load: ast.Call) -> bool:
    """The function that loads is not only there for the sake of completeness."""
    function = module.function(load)
    if function is None or module.class_(function) is not None:
        return True
    others = module.project.naming(module, function.name) if module.project is not None else []
    called = re.compile(rf"(?<!def )\b{function.name}\b")
    texts = (module.source.text, *(text for _, text in others))
    return any(called.search(_COMMENT.sub("", text)) for text in texts)


def says_resume(loaded: Loaded) -> bool:
    """The path, the function or the test around a load says that training continues from it."""
    home = loaded.module
    context = [home.segment(a) for a in loaded.call.args[:1]]
    child: ast.AST = loaded.call
    for up in home.parents(loaded.call):
        if isinstance(up, ast.If) and child is not up.test:
            said = _holds_where(up.test, child in up.body)
            if said is False:
                return False  # the other case: weights to begin with
            context += ["resume"] if said else []
        elif isinstance(up, ast.FunctionDef):
            context.append(up.name)
            break
        child = up
    return any(_RESUME.search(text) for text in context)


def _holds_where(test: ast.expr, so: bool) -> bool | None:
    """Whether training is resumed where a test comes out so: `init and resume is None` is the case without; None where it does not say."""
    match test:
        case ast.UnaryOp(ast.Not(), asked):
            return _holds_where(asked, not so)
        case ast.BoolOp(op, parts):
            known = {_holds_where(part, so) for part in parts} - {None}
            # of `a or b` that holds, and of `a and b` that does not, it is not known which part it was
            sure = isinstance(op, ast.And) is so or len(known) == 1
            return min(known) if known and sure else None  # type: ignore[type-var]
        case ast.Compare(asked, [op], [ast.Constant(None | "" | False)]):
            nothing = isinstance(op, ast.Is | ast.Eq)
            return _holds_where(asked, so is not nothing)
    if _RESUME.search(ast.unparse(test)) is None:
        return None
    return so

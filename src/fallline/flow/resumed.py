"""Whether somebody continues from a checkpoint: it is loaded by code that runs, and more than the weights is taken from it."""

from __future__ import annotations

import ast
import re

from fallline.flow.checkpoints import Saved, loads, role_of_key
from fallline.syntax import Module

__all__ = ["has_weights", "only_evaluated", "restored_somewhere", "resumed"]

# Whoever continues has to know where: `start_epoch`, `global_step`.
_GOES_ON = re.compile(
    r"resum|restor|continu|restart|(start|begin|init|last|initial|global|from)_?(epoch|step|iter)",
    re.IGNORECASE,
)
_RESTORES = re.compile(r"(?i)opt\w*(\[\w+\])?\.load_state_dict\(")
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


def resumed(module: Module, saved: Saved) -> bool:
    """Someone is seen to continue from it. An epoch in a file of weights may only say which one they are of."""
    text = _COMMENT.sub("", module.source.text)
    if _RESUMES.search(text) and re.search(r"(?i)\bload|restore", text):
        return True
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

"""Whether a file is worth reading at all: decided on its bytes, before anything heavy is imported."""

from __future__ import annotations

import re

__all__ = ["matters", "nothing_to_find", "of_another_framework"]

# A file with none of these cannot hold a mistake of ours.
_MATTERS = re.compile(
    rb"torch|lightning|accelerat|deepspeed|transformers|\btrl\b|\bpeft\b|\.backward\(|zero_grad|requires_grad|optimi[sz]er|nn\."
    # a class of the project that derives from a module in another file of it
    rb"|^class \w+\([\w., ]*(?:Policy|Module|Network|Trainer)\b",
    re.M,
)
# A file that imports another framework and none around torch (a link in a comment is not an import) has a protocol of its own.
_AROUND_TORCH = re.compile(
    rb"^[^#\n]{0,500}?(?:\b(?:import|from)\b[^#\n]{0,500}?(?:torch|lightning|accelerate|deepspeed|transformers)|\btorch\.\w)",
    re.M,
)
_IMPORTS = (b"\nimport torch", b"\nfrom torch")
_OTHERS = (b"mxnet", b"paddle", b"tensorflow", b"keras", b"jax", b"flax", b"mindspore", b"tinygrad")
_OTHER_FRAMEWORK = re.compile(
    rb"^[ \t]*(?:import|from)[ \t]+(?:" + b"|".join(_OTHERS) + rb")\b", re.M
)
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without the import


def matters(data: bytes) -> bool:
    """Whether a file can hold a mistake of ours at all."""
    if b"torch" not in data and _MATTERS.search(data) is None:  # a word is found at once
        return False
    return not of_another_framework(data)


def of_another_framework(data: bytes) -> bool:
    """Whether a file imports another framework, and nothing around torch."""
    # searches for words take a tenth of the time, and the first of these mostly end near the top of the file
    if any(line in data for line in _IMPORTS) or not any(name in data for name in _OTHERS):
        return False
    return _OTHER_FRAMEWORK.search(data) is not None and _AROUND_TORCH.search(data) is None


def nothing_to_find(path: str, data: bytes) -> bool:
    """The file cannot hold a mistake of ours, and it can be read: not even FL000 is in it."""
    # a notebook is JSON around code: only reading it tells whether it is whole
    return not path.endswith(".ipynb") and not matters(data) and _parses(data)


def _parses(data: bytes) -> bool:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "<bytes>", "exec", _ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True

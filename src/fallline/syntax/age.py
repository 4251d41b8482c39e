"""Files that only an old torch can run."""

from __future__ import annotations

import re

from fallline.syntax.module import Module

__all__ = ["needs_old_torch", "volatile_works"]

# Extensions that torch built through its ffi, up to 0.4; the loss as a tensor of one element, up to 0.4.
_BUILT = re.compile(r"^[ \t]*from [\w.]*\b_ext\b[\w.]* import|torch\.utils\.ffi", re.M)
_INDEXED = re.compile(r"^[^#\n]*\bloss\w*\.data\[0\]", re.M)

# Names that came with torch 0.4, in which `volatile` no longer does anything.
_SINCE = ("detect_anomaly", "torch.no_grad", "torch.set_grad_enabled", "torch.device(", ".item()")


def volatile_works(module: Module) -> bool:
    """Written for torch 0.3: `volatile=True` stops autograd there, and nothing in the file is younger."""
    text = module.source.text
    return "volatile=True" in text and not any(name in text for name in _SINCE)


def needs_old_torch(module: Module) -> bool:
    """Nothing of it runs with torch 1.0 or later, whatever else it does."""
    text = module.source.text
    if ("_ext" in text or "utils.ffi" in text) and _BUILT.search(text) is not None:
        return True
    indexed = ".data[0]" in text and _INDEXED.search(text) is not None
    return indexed and not any(name in text for name in _SINCE)

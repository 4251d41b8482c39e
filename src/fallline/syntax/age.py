"""Files that only an old torch can run."""

from __future__ import annotations

from fallline.syntax.module import Module

__all__ = ["volatile_works"]

# Names that came with torch 0.4, in which `volatile` no longer does anything.
_SINCE = ("detect_anomaly", "torch.no_grad", "torch.set_grad_enabled", "torch.device(", ".item()")


def volatile_works(module: Module) -> bool:
    """Written for torch 0.3: `volatile=True` stops autograd there, and nothing in the file is younger."""
    text = module.source.text
    return "volatile=True" in text and not any(name in text for name in _SINCE)

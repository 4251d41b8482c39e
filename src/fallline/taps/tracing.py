"""Whether code runs on tensors that only stand for others: a compiler traces it, or functorch transforms it.

dynamo runs functions of torch with fake tensors, AOT autograd and export with functional ones, `vmap` and `grad` with wrapped ones. None
of them has values, and what happens there is not an update. `torch.jit.trace` runs a model on real ones to write down what it does, as
TensorBoard's graph does: neither an evaluation nor an update.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["faked", "traced"]

_C: Any = torch._C
_depth = _C._len_torch_dispatch_stack
_mode = _C._get_dispatch_mode
_jit_trace = _C._get_tracing_state
_KEYS = tuple(getattr(_C._TorchDispatchModeKey, k) for k in ("FAKE", "PROXY", "FUNCTIONAL"))
# Not `_functorch.peek_interpreter_stack()`: the first call of that makes functorch's state of the thread, which torch then copies for
# every node of every backward, for the rest of the process (1.5 % of a small step).
_transformed = _C._are_functorch_transforms_active


def faked() -> bool:
    """A mode for fake, proxy or functional tensors is on, or a trace is made; other modes, such as one that counts operations, run on real ones."""
    if _jit_trace() is not None:
        return True
    return _depth() > 0 and any(_mode(key) is not None for key in _KEYS)


def traced() -> bool:
    """Of whatever kind. The first test is the one that dynamo knows: it reads nothing behind it, and guards nothing."""
    return torch.compiler.is_compiling() or faked() or _transformed()

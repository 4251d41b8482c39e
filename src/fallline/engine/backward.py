"""`loss.backward()`, without its ceremony where nobody would miss it."""

from __future__ import annotations

import torch
from torch import Tensor

from fallline.engine.forget import torchs_own

try:
    from torch.autograd.graph import _engine_run_backward as _run
except ImportError:  # not public: it may have another name some day
    _run = None  # type: ignore[assignment]

__all__ = ["backward"]


def backward(loss: Tensor, retain_graph: bool) -> None:
    """Backward of one number.

    torch's own method prepares for lists, for gradients that are given and for subclasses: 15 microseconds, in which this loss needs a
    one to begin with. A method that somebody listens to (`fallline run` does) is called, and so is a subclass's.
    """
    if (
        _run is not None
        and type(loss) is Tensor
        and Tensor.backward is _METHOD
        and torch.autograd.backward is _FUNCTION
        and not loss.is_complex()
        and not torch._C._is_torch_function_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
    ):
        _run(
            (loss,), (torch.ones_like(loss),), retain_graph, False, (),
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip
    else:
        loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


_METHOD, _FUNCTION = torchs_own(Tensor.backward), torchs_own(torch.autograd.backward)

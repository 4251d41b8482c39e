"""A model's input that holds NaN or Inf."""

from __future__ import annotations

from typing import Any

import torch

from fallline.replay.again import arguments
from fallline.replay.capture import Capture, Gone, take
from fallline.replay.named import NamedTensors
from fallline.replay.tensors import tensors_in
from fallline.taps.frames import user_frames
from fallline.watcher.origin_trace import describe, first_bad

__all__ = ["bad_input"]


def bad_input(capture: Capture | None) -> dict[str, Any] | None:
    """The first one with NaN or positive infinity, by its name and index. Negative infinities alone are a mask."""
    if capture is None:
        return None
    try:
        given = [t for c in capture.calls for t in tensors_in((take(c.args), take(c.kwargs)))]
    except Gone:
        return None
    for tensor in given:
        if not tensor.is_floating_point() or bool((tensor < torch.inf).all()):
            continue
        names = NamedTensors(dict(next(iter(user_frames())).f_locals)) | arguments(capture)
        name, index = names.find(tensor, first_bad(tensor))
        return {"tensor": name, "index": index, "kind": "input", "result": describe(tensor)}
    return None

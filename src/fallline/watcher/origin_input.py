"""A model's input that holds NaN or Inf."""

from __future__ import annotations

from typing import Any

import torch

from fallline.replay.again import arguments
from fallline.replay.capture import Capture, Gone, take
from fallline.replay.named import NamedTensors
from fallline.replay.tensors import tensors_in
from fallline.taps.frames import user_frames
from fallline.watcher.origin_trace import WEIGHS, Story, describe, first_bad

__all__ = ["bad_input"]


def bad_input(capture: Capture | None, story: Story | None) -> dict[str, Any] | None:
    """The first one with NaN or Inf, by its name and index. Negative infinities alone are a mask, unless the operation that met them weighs them."""
    if capture is None:
        return None
    try:
        given = [t for c in capture.calls for t in tensors_in((take(c.args), take(c.kwargs)))]
    except Gone:
        return None
    for tensor in given:
        if not tensor.is_floating_point():
            continue
        if bool((tensor < torch.inf).all()) and not _weighed(tensor, story):
            continue
        names = NamedTensors(dict(next(iter(user_frames())).f_locals)) | arguments(capture)
        name, index = names.find(tensor, first_bad(tensor))
        return {"tensor": name, "index": index, "kind": "input", "result": describe(tensor)}
    return None


def _weighed(tensor: torch.Tensor, story: Story | None) -> bool:
    """Whether it is this tensor, and its infinities, that a matrix product or the like has met."""
    if story is None or story.op not in WEIGHS or bool(torch.isfinite(tensor).all()):
        return False
    met = [{k: v for k, v in given.items() if k != "name"} for given in story.inputs]
    return describe(tensor) in met

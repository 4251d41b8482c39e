"""The torchvision that is installed, also where its compiled operators do not load: no script here needs them."""

import importlib.machinery
import os
import sys

import torch

_stage = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_elsewhere = [p for p in sys.path if os.path.abspath(p) != _stage]
_found = importlib.machinery.PathFinder.find_spec("torchvision", _elsewhere)
if _found is None or _found.origin is None:
    raise ModuleNotFoundError("torchvision is not installed: give its folder with --site")
try:
    torch.ops.load_library(os.path.join(os.path.dirname(_found.origin), "_C.so"))
except (OSError, RuntimeError):
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
_path, sys.path = sys.path, _elsewhere
del sys.modules["torchvision"]
import torchvision  # noqa: E402, F401

sys.path = _path

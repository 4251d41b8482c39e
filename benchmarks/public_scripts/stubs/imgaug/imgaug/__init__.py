"""The imgaug that is installed, on a numpy that no longer has the names it asks for."""

import os
import sys

import numpy as np

np.sctypes = {
    "float": [np.float16, np.float32, np.float64],
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
}
np.bool = getattr(np, "bool", np.bool_)
_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_path = sys.path
sys.path = [p for p in _path if os.path.abspath(p) != _here]
del sys.modules["imgaug"]
import imgaug  # noqa: E402, F401

sys.path = _path

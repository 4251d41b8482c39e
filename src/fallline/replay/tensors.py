"""Tensors in what a call got or gave, and the names that people use for the operations on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

__all__ = ["flat", "keep_spelling", "plain_base", "plain_name", "storage", "tensors_in"]

_PLAIN = {
    "addmm": "linear", "mm": "matmul", "bmm": "matmul", "baddbmm": "matmul", "mv": "matmul", "dot": "matmul",
    "_to_copy": "to", "to_copy": "to", "linalg_vector_norm": "norm", "native_dropout": "dropout",
    "_native_batch_norm_legit": "batch_norm", "cudnn_batch_norm": "batch_norm", "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm", "convolution": "conv", "embedding_dense": "embedding", "_embedding_bag": "embedding_bag",
    "_foreach_norm": "norm", "native_norm": "norm", "_weight_norm_interface": "weight_norm",
}  # fmt: skip


_own_names: set[str] = set()


def keep_spelling(name: str) -> None:
    """A class derived from torch.autograd.Function: its name is the user's own."""
    _own_names.add(name)


def plain_name(name: str, like: Tensor | None = None) -> str:
    """`aten::_log_softmax` → log_softmax, `SqrtBackward0` → sqrt, as people write the operation.

    `like`: a tensor of the shape of its result, which tells a conv1d from a conv2d.
    """
    plain = _plain_name(name)
    if plain == "conv" and like is not None and 3 <= like.dim() <= 5:
        return f"conv{like.dim() - 2}d"
    return plain


def _plain_name(name: str) -> str:
    name = name.rpartition("::")[2].partition(".")[0]
    match = re.fullmatch(r"(.+?)Backward\d*", name)
    if match:
        camel = match[1]
        if camel in _own_names:
            return camel
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).lower()
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith(("_scaled_dot_product", "scaled_dot_product")):
        return "scaled_dot_product_attention"
    name = name.removeprefix("_").removeprefix("native_").removesuffix("_forward").rstrip("_")
    return _PLAIN.get(name, name)


def storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def plain_base(name: str) -> str:
    return name.rpartition("::")[2].partition(".")[0]


def flat(thing: Any) -> Iterator[Any]:
    if isinstance(thing, list | tuple):
        for item in thing:
            yield from flat(item)
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from flat(item)
    else:
        yield thing


def tensors_in(thing: Any) -> Iterator[Tensor]:
    return (t for t in flat(thing) if isinstance(t, Tensor))

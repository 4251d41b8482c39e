"""What has to be the same in every way for the comparison to mean anything: dropout is off, BatchNorm does not look at the batch.

Dropout draws other numbers for a large batch than for small ones, and BatchNorm's statistics are those of the micro-batch. Neither
is a mistake of the loop, so both are taken out of all sides, and the answer says so.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from fallline.taps.patches import Patches, Wrapped

__all__ = ["steady"]

_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip


def steady(patches: Patches, met: set[str]) -> None:
    """Turn both off from here on; what was met goes into `met`: "dropout", "batch norm"."""
    for name in _DROPOUTS:
        patches.patch(functional, name, lambda original: _identity(original, met), imported=True)
    patches.patch(
        functional,
        "scaled_dot_product_attention",
        lambda original: _no_attention_dropout(original, met),
        imported=True,
    )
    patches.patch(functional, "batch_norm", lambda original: _running(original, met), imported=True)
    patches.patch(nn.RNNBase, "__init__", lambda original: _no_layer_dropout(original, met))


def _identity(original: Wrapped, met: set[str]) -> Wrapped:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if p and training:
            met.add("dropout")
        return original(input, 0.0, False, False)

    return dropout


def _no_attention_dropout(original: Wrapped, met: set[str]) -> Wrapped:
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if dropout_p:
            met.add("dropout")
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention


def _running(original: Wrapped, met: set[str]) -> Wrapped:
    def batch_norm(
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if training:
            met.add("batch norm")
            training = running_mean is None
        return original(input, running_mean, running_var, weight, bias, training, *args, **kwargs)

    return batch_norm


def _no_layer_dropout(original: Wrapped, met: set[str]) -> Wrapped:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.dropout:
            met.add("dropout")
            self.dropout = 0.0

    return __init__

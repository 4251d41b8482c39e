"""Which layers of torch.nn behave differently in eval mode."""

from __future__ import annotations

import re

__all__ = ["layer_has_mode"]

_MODAL = re.compile(
    r"\w*BatchNorm\w*|\w*Dropout\w*|RReLU|Transformer\w*|InstanceNorm\dd|FeatureAlphaDropout"
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "MultiheadAttention"})


def layer_has_mode(type_name: str, *, dropout: bool) -> bool:
    """Whether a layer of torch.nn behaves differently in eval mode. `dropout`: it was given as an argument."""
    if type_name in _RECURRENT:
        return dropout
    return _MODAL.fullmatch(type_name) is not None

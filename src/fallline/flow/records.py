"""Entries of a checkpoint that nobody has to put back, and loads that only begin with somebody's weights."""

from __future__ import annotations

import ast
import re

from fallline.flow.checkpoints import Loaded, Saved, role_of_key, state_of

__all__ = ["a_record", "begins_with"]

_RECORD = re.compile(
    r"(?i)(^|_)(params?|cfg|config|args|opts?|options|hparams|settings|name|type|lr)$"
)


def a_record(saved: Saved, key: str, value: ast.expr) -> bool:
    """`"optimizer_params": cfg.optimizer.params`: how the optimizer was set up. Its state is another entry of the same file."""
    if _RECORD.search(key) is None or state_of(value) is not None:
        return False
    role = saved.role(key, value)
    states = {k: v for k, v in saved.entries.items() if k != key and saved.role(k, v) == role}
    return any(state_of(v) is not None for v in states.values())


def begins_with(loaded: Loaded) -> bool:
    """The weights that fit are copied one by one (`if key in state and state[key].shape == ...`), and nothing else is asked for: another model's weights to begin with."""
    home, function = loaded.module, loaded.module.function(loaded.call)
    text = home.segment(function) if function is not None else ""
    roles = {role_of_key(k) for k in loaded.keys}
    partly = re.search(r"\.shape\s*==|\.size\(\)\s*==", text) and "strict=False" in text
    return roles <= {None} and bool(partly)

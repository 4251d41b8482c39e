"""FSDP computes with whole parameters that it makes for the occasion; the optimizer holds their shards, or views into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fallline.replay.modules import wrapper_of

__all__ = [
    "flattened_in_parts",
    "groups_of",
    "is_finite",
    "is_spread",
    "local",
    "shards_of",
    "views_of",
]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it. Asking a DTensor itself may make all ranks talk to each other; ZeRO-3 keeps its parts aside."""
    part = getattr(tensor, "_local_tensor", None)
    part = getattr(tensor, "ds_tensor", None) if part is None else part
    return part if isinstance(part, Tensor) else tensor


def shards_of(models: Iterable[nn.Module]) -> dict[int, list[Tensor]]:
    """id of a parameter that a graph ends in → what the optimizer holds of it, where FSDP says so."""
    found: dict[int, list[Tensor]] = {}
    for model in models:
        for module in model.modules():
            if wrapper_of(module) == "fsdp2":
                for known in _parameters(module):
                    whole, shard = (
                        getattr(known, "_unsharded_param", None),
                        getattr(known, "sharded_param", None),
                    )
                    if isinstance(whole, Tensor) and isinstance(shard, Tensor):
                        found[id(whole)] = [shard]
    return found


def is_finite(tensor: Tensor) -> bool:
    """Every number of what this rank holds of it."""
    return bool(torch.isfinite(local(tensor.detach())).all())


def is_spread(module: nn.Module) -> bool:
    """Whether a forward pass of this module talks to other ranks, so that one of them cannot run it alone."""
    if any((wrapper_of(m) or "").startswith("fsdp") for m in module.modules()):
        return True
    if any(isinstance(m, nn.SyncBatchNorm) for m in module.modules()):
        return True
    return any(hasattr(p, "_local_tensor") or hasattr(p, "ds_tensor") for p in module.parameters())


def flattened_in_parts(parameters: Iterable[Any]) -> bool:
    """Whether FSDP1 has flattened these parameters and spread them over ranks."""
    for parameter in parameters:
        if hasattr(parameter, "_is_flat_param"):  # NO_SHARD leaves it as large as it is
            return bool(parameter.numel() < sum(getattr(parameter, "_numels", ())))
        if hasattr(parameter, "_fsdp_flattened"):
            return True
    return False


def views_of(flat: Tensor) -> list[Tensor]:
    """The parameters whose values FSDP1 keeps in this flat one (`use_orig_params=True`): those are what the optimizer holds."""
    kept = getattr(flat, "_params", None)
    return [p for p in kept if isinstance(p, Tensor)] if isinstance(kept, list) else []


def _parameters(module: Any) -> Iterator[Any]:
    """What FSDP2 keeps about each parameter of this module."""
    for group in _own_groups(module):
        yield from getattr(group, "fsdp_params", ())


def groups_of(model: nn.Module) -> list[Any]:
    """The groups of parameters that FSDP2 gathers and reduces together, of this model and all in it."""
    return [g for m in model.modules() if wrapper_of(m) == "fsdp2" for g in _own_groups(m)]


def _own_groups(module: Any) -> list[Any]:
    """Not public: it may be called otherwise in another version of torch."""
    try:
        state = module._get_fsdp_state()
    except (AttributeError, AssertionError, RuntimeError):
        return []
    several = getattr(state, "_fsdp_param_groups", None)
    groups = several or [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]

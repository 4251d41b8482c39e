"""Which parameters, in which clip groups, each exactly once; and their gradients as plain local tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fallline.errors import EngineError

__all__ = ["Parameters", "Per", "as_real", "is_dtensor", "local", "some", "sum_over_shards"]

Per = Literal["all", "group", "layer"]

_NEEDS = {
    "layer": "clipping per layer needs names: give the model, or model.named_parameters()",
    "group": "clipping per group needs parameter groups: give the optimizer, or its param_groups",
}


class Parameters:
    """Parameters in the order of their clip groups. A parameter that is reached twice is kept once."""

    group_names: tuple[str, ...]
    tensors: list[Tensor]
    groups: tuple[int, ...]
    frozen: Sequence[Tensor] = ()  # of the model, and in no optimizer: they must stay frozen

    def __init__(
        self,
        names: list[str] | None,
        tensors: list[Tensor],
        groups: Sequence[str] | None = None,
    ) -> None:
        if groups is None and len(set(map(id, tensors))) == len(tensors):
            self.group_names, self.tensors, self.groups = ("",), tensors, (0,) * len(tensors)
            self._names = names
            return
        order = list({id(p): i for i, p in reversed(list(enumerate(tensors)))}.values())[::-1]
        numbers = {group: i for i, group in enumerate(dict.fromkeys(groups or ()))}
        if groups is not None:
            # Stable: groups, and members, in the order given
            order.sort(key=lambda i: numbers[groups[i]])
        self.group_names = tuple(numbers) or ("",)
        self.tensors = [tensors[i] for i in order]
        self.groups = (
            tuple([numbers[groups[i]] for i in order]) if groups is not None else (0,) * len(order)
        )
        self._names = None if names is None else [names[i] for i in order]

    @classmethod
    def of(cls, what: Any, per: Per = "all") -> Parameters:
        """From whatever a PyTorch user has at hand: parameters, names and parameters, a model, an optimizer."""
        if per not in ("all", "group", "layer"):
            raise EngineError(f'per={per!r} is not known: use "all", "group" or "layer"')
        if isinstance(what, nn.Module):
            what = list(what.named_parameters())
        elif isinstance(what, torch.optim.Optimizer):
            what = what.param_groups
        items: list[Any] = [what] if isinstance(what, Tensor) else list(what)
        first = items[0] if items else None
        if isinstance(first, dict):
            if per == "layer":
                raise EngineError(_NEEDS["layer"])
            pairs = [(str(i), p) for i, group in enumerate(items) for p in group["params"]]
            return cls(
                None,
                [p for _, p in pairs],
                [group for group, _ in pairs] if per == "group" else None,
            )
        if isinstance(first, tuple):
            if per == "group":
                raise EngineError(_NEEDS["group"])
            names = [name for name, _ in items]
            return cls(
                names, [p for _, p in items], list(map(layer_of, names)) if per == "layer" else None
            )
        if per != "all" and items:
            raise EngineError(_NEEDS[per])
        return cls(None, items)

    @property
    def names(self) -> list[str]:
        """As in `named_parameters()`, where names were given; else their numbers."""
        return self._names if self._names is not None else list(map(str, range(len(self.tensors))))

    @cached_property
    def are_few(self) -> bool:
        """Whether they are one clip group of a few plain float32 parameters of a CPU, as in small models."""
        return (
            len(self.tensors) <= 16
            and len(self.group_names) == 1
            and all(
                type(p) in (nn.Parameter, Tensor)
                and p.device.type == "cpu"
                and p.dtype is torch.float32
                for p in self.tensors
            )
        )

    def with_gradient(self) -> tuple[list[Tensor], tuple[int, ...]]:
        """The gradients that are there, and the clip group of each, numbered without gaps."""
        present = [g for p in self.tensors if (g := p.grad) is not None]
        if len(present) == len(self.tensors) or len(self.group_names) == 1:
            return present, self.groups[: len(present)]
        used = [
            group for p, group in zip(self.tensors, self.groups, strict=True) if p.grad is not None
        ]
        number = {group: i for i, group in enumerate(dict.fromkeys(used))}
        return present, tuple([number[group] for group in used])

    def names_with_gradient(self) -> list[str]:
        return [
            name for name, p in zip(self.names, self.tensors, strict=True) if p.grad is not None
        ]


def layer_of(name: str) -> str:
    """The module that owns a parameter: `encoder.0.attention` for `encoder.0.attention.in_proj_weight`."""
    return name.rpartition(".")[0]


def is_dtensor(tensor: Tensor) -> bool:
    # By attribute, so that a process that shards nothing never imports torch.distributed.tensor.
    return (
        type(tensor) is not Tensor
        and hasattr(tensor, "device_mesh")
        and hasattr(tensor, "placements")
    )


def as_real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers: a complex one is two."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def local(grads: list[Tensor]) -> list[Tensor]:
    """This rank's own memory of each gradient."""
    if set(map(type, grads)) == {Tensor}:
        return grads
    return [_local(g) if is_dtensor(g) else g for g in grads]


def _local(grad: Any) -> Tensor:
    if any(p.is_partial() for p in grad.placements):
        raise EngineError(
            "a gradient is still a partial sum over a device mesh (placement Partial): redistribute it to Shard or Replicate "
            "before it is clipped, or shard the module with torch's parallelize_module"
        )
    tensor: Tensor = grad.to_local()
    return tensor


def sum_over_shards(values: Tensor, grads: Sequence[Tensor], largest: bool = False) -> Tensor:
    """One value for each gradient, from this rank's shards to the whole: one all-reduce for each device mesh."""
    sharded: dict[Any, list[int]] = {}
    for i, grad in enumerate(grads):
        if is_dtensor(grad):
            # Not `is_shard`: that is False for the strided shards that FSDP2 makes of tensor-parallel parameters
            pattern = tuple(not p.is_replicate() for p in grad.placements)  # type: ignore[attr-defined]
            if any(pattern):
                sharded.setdefault((grad.device_mesh, pattern), []).append(i)  # type: ignore[attr-defined]
    if not sharded:
        return values
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

    values = values.clone()
    for (mesh, pattern), rows in sharded.items():
        placements: list[Placement] = [
            Partial("max" if largest else "sum") if is_shard else Replicate()
            for is_shard in pattern
        ]
        whole = DTensor.from_local(values[rows], mesh, placements, run_check=False).full_tensor()
        values[rows] = whole
    return values

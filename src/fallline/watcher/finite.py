"""Whether every gradient is finite, in one look that is as cheap as a CPU allows.

A finite 2-norm says so at once, and is by far the cheapest norm; one that is not finite may also come from large finite
numbers, so only then each number is looked at. On a CPU small tensors are first copied into one buffer: a kernel for each
would cost several times as much. On CUDA it is the engine's one read of all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fallline.engine.statistics import SQUARES, has_kernel, moments_of

__all__ = ["Plan"]

COPIED_BELOW = 4_096  # elements
ALIKE = 3  # tensors that go through one copy
_STAGES = frozenset(
    {"pp", "pipe", "pipeline", "stage"}
)  # what people call that dimension of a mesh


class Plan:
    """How to look at the gradients of one set of parameters; made once, as they are alike from update to update."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self.count = len(gradients)
        self.few: list[tuple[int, int]] = []  # where a few of them are found, if all are too many
        self.elements = sum(map(Tensor.numel, gradients))
        self.rests = 0  # steps before which a few have to do
        self.looks = 0
        self.seconds = 0.0  # that a look takes, more or less
        self._plain = all(
            type(g) is Tensor and g.layout is torch.strided and g.is_floating_point()
            for g in gradients
        )
        # small tensors that fit on top of each other, and the rest
        stacks: dict[tuple[torch.dtype, torch.Size], list[int]] = {}
        others: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for i, g in enumerate(gradients):
            if g.device.type == "cpu" and g.dim() and 0 < g.numel() <= COPIED_BELOW:
                stacks.setdefault((g.dtype, g.shape[1:]), []).append(i)
            else:
                others.setdefault((g.device, g.dtype), []).append(i)
        for (dtype, _), which in list(stacks.items()):
            if len(which) < ALIKE:
                others.setdefault((torch.device("cpu"), dtype), []).extend(which)
        # which they are, the type of their norm, and whether the engine's kernel reads them
        self._rest = [
            (which, torch.promote_types(dtype, torch.float32), has_kernel(gradients[which[0]]))
            for (_, dtype), which in others.items()
        ]
        self._stacks: list[tuple[Callable[[list[Tensor]], Any], Tensor]] = []
        self._buffers: list[Tensor] = []
        if self._plain:
            self._lay_out({key: w for key, w in stacks.items() if len(w) >= ALIKE}, gradients)

    def _lay_out(
        self, stacks: dict[tuple[torch.dtype, torch.Size], list[int]], gradients: list[Tensor]
    ) -> None:
        """One buffer for each type, and in it a place for each stack."""
        for dtype in {d for d, _ in stacks}:
            mine = [(rest, which) for (d, rest), which in stacks.items() if d is dtype]
            sizes = [sum(gradients[i].numel() for i in which) for _, which in mine]
            buffer = torch.empty(sum(sizes), dtype=dtype, device="cpu")
            self._buffers.append(buffer)
            for (rest, which), part in zip(mine, torch.split(buffer, sizes), strict=True):
                self._stacks.append((itemgetter(*which), part.view(-1, *rest)))

    def norm_if_finite(self, gradients: list[Tensor]) -> tuple[bool, float | None]:
        """Whether every number is finite, and then the norm of all of them. Waits once for a device."""
        with torch.no_grad():
            if not self._plain:
                return _one_by_one(gradients)
            try:
                norm = self._norm(gradients)
            except (RuntimeError, NotImplementedError):
                return _one_by_one(gradients)
            if math.isfinite(norm):
                return True, norm
            return all(bool(torch.isfinite(g).all()) for g in gradients), None

    def _norm(self, gradients: list[Tensor]) -> float:
        norms: list[Tensor] = []
        for which, wide, kernel in self._rest:
            group = gradients if len(which) == self.count else [gradients[i] for i in which]
            if kernel:
                norms.append(moments_of(group)[:, SQUARES].sum().sqrt())
            else:
                each = torch._foreach_norm(group, 2, dtype=wide)
                norms.append(torch.linalg.vector_norm(torch.stack(each)))
        for pick, part in self._stacks:
            torch.cat(pick(gradients), out=part)
        norms += map(_norm, self._buffers)
        return math.hypot(*map(Tensor.item, norms))


def _one_by_one(gradients: list[Tensor]) -> tuple[bool, float | None]:
    """Sparse, complex or distributed tensors."""
    norms = []
    spread = any(hasattr(g, "_local_tensor") for g in gradients)
    for gradient in gradients:
        value = _values(gradient)
        if not value.numel():
            continue
        norm = float(_norm(value))
        if not math.isfinite(norm) and not bool(torch.isfinite(value).all()):
            return False, None
        if not spread or _counts_here(gradient):
            norms.append(norm)
    total = math.hypot(*norms)
    return True, total if math.isfinite(total) else None


def _counts_here(gradient: Any) -> bool:
    """Of what several ranks hold alike the first one counts: whoever reads the run adds up what the ranks have measured."""
    placements = getattr(gradient, "placements", None)
    if placements is None:
        return torch.distributed.get_rank() == 0
    mesh = gradient.device_mesh
    places = mesh.get_coordinate() or ()
    # torch's own is_shard() does not know the shards of two meshes at once
    mine = (hasattr(p, "dim") or not place for p, place in zip(placements, places, strict=False))
    return all(mine) and _is_first(mesh)


@cache
def _is_first(mesh: Any) -> bool:
    """FSDP2 beside tensor parallelism keeps what is not parallel on a mesh of its own, once for each of the tensor-parallel ranks."""
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    here = root.get_coordinate()
    if here is None or root is mesh:
        return True
    names = root.mesh_dim_names or ("",) * root.ndim
    holders = torch.isin(root.mesh, mesh.mesh).nonzero()
    outside = [d for d in range(root.ndim) if bool((holders[:, d] == here[d]).all())]
    # the stages of a pipeline hold different parameters
    return not any(here[d] for d in outside if names[d] not in _STAGES)


def _norm(tensor: Tensor) -> Tensor:
    wide = torch.promote_types(tensor.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=wide)
    return norm


def _values(gradient: Tensor) -> Tensor:
    gradient = gradient.detach()
    local: Any = getattr(gradient, "_local_tensor", gradient)
    gradient = local if isinstance(local, Tensor) else gradient
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient

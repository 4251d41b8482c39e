"""What wraps the model for data parallelism: which ranks it synchronises, and what it divides their summed gradients by.

This is read from the wrapper, never assumed: FSDP2's divide factor can be changed, and a communication hook may sum.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fallline.engine.buckets import Arrival
from fallline.engine.gradients import is_dtensor
from fallline.errors import EngineError

__all__ = ["Reduction", "Wrapper", "wrappers_of"]

Reduction = Literal["mean", "sum", "none"]

_SAY = 'If you know what it leaves on every rank, say so: Stepper(..., reduction="mean") or reduction="sum"'
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_AVERAGING = {
    _HOOKS + name
    for name in (
        "default_hooks",
        "powerSGD_hook",
        "quantization_hooks",
        "mixed_precision_hooks",
    )
}


class Wrapper:
    """One module that synchronises gradients: DDP, FSDP2, or one of torch's two composable `replicate`."""

    collective_forward = False  # whether its forward pass waits for the other ranks
    keeps_gradients = (
        False  # whether it holds the gradients of an open window where nobody sees them
    )

    def __init__(self, module: Any) -> None:
        self.module = module
        self._synchronises: bool | None = None

    def groups(self) -> list[Any]:
        """The process groups that it reduces over, one after the other."""
        raise NotImplementedError

    def divisor(self) -> float | None:
        """What the sum over ranks is divided by; None: by their number."""
        return None

    def check(self) -> None:
        """An error where nobody can know what it does to the gradients."""

    def covers(self) -> Iterable[Any]:
        """The parameters that it synchronises."""
        return self.module.parameters()  # type: ignore[no-any-return]

    def kept(self) -> list[Tensor | None]:
        """The gradients of an open window that no parameter shows."""
        return []

    def switch(self, synchronise: bool) -> None:
        """Before the forward pass: whether the backward pass will synchronise."""
        if self._synchronises is not synchronise:
            self.module.set_requires_gradient_sync(synchronise)
            self._synchronises = synchronise

    def leave(self) -> None:
        """After the backward pass."""

    def arrival(self) -> list[int]:
        """The order in which gradients arrived, where the bits of a sum depend on it."""
        return []

    def replay(self, order: Sequence[int]) -> None:
        """After a checkpoint was loaded: as if gradients had arrived in that order."""


class _DDP(Wrapper):
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._open: AbstractContextManager[None] | None = None
        self._arrival = Arrival(module)

    def groups(self) -> list[Any]:
        return [self.module.process_group]

    def check(self) -> None:
        for hook, state in getattr(self.module, "_comm_hooks", []):
            _check_hook(hook, state, self.module.process_group)
        if any(hasattr(p, "_st_info") for p in self.module.parameters()):
            raise EngineError(
                "DDP around tensor-parallel parameters hides that they are shards, so their norm would differ between ranks: "
                "use torch.distributed.fsdp.fully_shard on the data-parallel mesh dimension instead of DDP"
            )

    def covers(self) -> Iterable[Any]:
        ignored: set[str] = getattr(self.module, "parameters_to_ignore", set())
        named = self.module.module.named_parameters()
        return [p for name, p in named if name not in ignored]

    def switch(self, synchronise: bool) -> None:
        if not synchronise:
            if self.module.static_graph:
                raise EngineError(
                    "DDP(static_graph=True) cannot leave out the synchronisation of its first backward pass, as accumulation does: "
                    "leave static_graph out, or use accumulate=1"
                )
            context: AbstractContextManager[None] = self.module.no_sync()
            context.__enter__()
            self._open = context
        else:
            self._arrival.listen()

    def leave(self) -> None:
        if self._open is not None:
            context, self._open = self._open, None
            context.__exit__(None, None, None)
        else:
            self._arrival.stop()

    def arrival(self) -> list[int]:
        return self._arrival.order

    def replay(self, order: Sequence[int]) -> None:
        self._arrival.replay(order)


class _Replicate(Wrapper):
    """The older `replicate`: DDP inside the module's hooks."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        from torch.distributed._composable.replicate import replicate

        self._state: Any = replicate.state(module)
        self._arrival: Arrival | None = None

    def _made(self) -> Arrival:
        """It makes its DDP in the first forward pass; that may as well be now."""
        if self._arrival is None:
            if self._state._init_args:
                self._state.lazy_init()
            self._arrival = Arrival(self._state._ddp)
        return self._arrival

    def switch(self, synchronise: bool) -> None:
        super().switch(synchronise)
        if synchronise:
            self._made().listen()

    def leave(self) -> None:
        if self._arrival is not None:
            self._arrival.stop()

    def arrival(self) -> list[int]:
        return [] if self._arrival is None else self._arrival.order

    def replay(self, order: Sequence[int]) -> None:
        self._made().replay(order)

    def groups(self) -> list[Any]:
        made = getattr(self._state, "_ddp", None)
        if made is not None:
            return [made.process_group]
        options = self._state._init_kwargs
        if options.get("device_mesh") is not None:
            return [options["device_mesh"].get_group()]
        return [options.get("process_group") or dist.group.WORLD]

    def check(self) -> None:
        for (state, hook, *_), _options in self._state._comm_hook_args:
            _check_hook(hook, state, self.groups()[0])
        for hook, state in getattr(getattr(self._state, "_ddp", None), "_comm_hooks", []):
            _check_hook(hook, state, self.groups()[0])
        if any(is_dtensor(p) for p in self.module.parameters()):
            raise EngineError(
                "composable replicate() replaces tensor-parallel parameters in its first forward pass, and the optimizer would keep "
                "the old ones: use torch.distributed.fsdp.fully_shard on the data-parallel mesh dimension"
            )


class _FSDP(Wrapper):
    """FSDP2, and the newer `replicate` that is built on it."""

    collective_forward = True
    keeps_gradients = True

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        states = [m._get_fsdp_state() for m in module.modules() if hasattr(m, "_get_fsdp_state")]
        self._param_groups = [group for state in states for group in _param_groups(state)]

    def groups(self) -> list[Any]:
        found = [_groups_of_mesh(group.mesh_info) for group in self._param_groups]
        if any(other != found[0] for other in found):
            raise EngineError(
                "FSDP2 reduces some parameters over different ranks than the rest, but the Stepper divides all gradients by one number. "
                "Shard all of them over the same mesh"
            )
        return found[0] if found else []

    def divisor(self) -> float | None:
        factors = {getattr(g, "gradient_divide_factor", None) for g in self._param_groups}
        if len(factors) > 1:
            raise EngineError(
                "FSDP2's gradient divide factor differs between modules: call set_gradient_divide_factor on all of them or on none"
            )
        return factors.pop() if factors else None

    def check(self) -> None:
        if any(getattr(g, "_all_reduce_hook", None) is not None for g in self._param_groups):
            raise EngineError(
                f"an all-reduce hook is set on the FSDP2 model, and the Stepper cannot know what it does to the gradients. {_SAY}"
            )

    def covers(self) -> Iterable[Any]:
        return [p for p in self.module.parameters() if is_dtensor(p)]

    def kept(self) -> list[Tensor | None]:
        held = [p for group in self._param_groups for p in group.fsdp_params]
        whole = (getattr(p, "_unsharded_param", None) for p in held)
        return [p.unsharded_accumulated_grad for p in held] + [
            None if p is None else p.grad for p in whole
        ]


def wrappers_of(models: Sequence[nn.Module]) -> list[Wrapper]:
    """Every outermost wrapper in the models."""
    found: list[Wrapper] = []
    inside: set[int] = set()
    for module in (m for model in models for m in model.modules()):
        if id(module) in inside:
            continue
        wrapper = _wrapper_of(module)
        if wrapper is not None:
            found.append(wrapper)
            inside.update(id(child) for child in module.modules())
    if len({type(w) for w in found}) > 1:
        raise EngineError("DDP and FSDP2 in one Stepper: wrap the model in one of them")
    return found


def _wrapper_of(module: nn.Module) -> Wrapper | None:
    # What the user never imported, no module can be; and then we need not import it either.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    composable = sys.modules.get("torch.distributed._composable.replicate")
    if isinstance(module, DistributedDataParallel):
        return _DDP(module)
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        raise EngineError(
            "FSDP1 (FullyShardedDataParallel) is not supported: shard with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    if isinstance(module, _fsdp2()):
        return _FSDP(module)
    if composable is not None and isinstance(module, composable.DDP):
        return _Replicate(module)
    if any(base.__module__.startswith("deepspeed.") for base in type(module).__mro__):
        raise EngineError(
            "DeepSpeed's engine accumulates, scales, clips and steps by itself, so a Stepper around it would do each of these twice. "
            "Keep engine.backward() and engine.step(), and check the loop with `fallline check` and `fallline run`; "
            "or give the Stepper the plain model, with DDP or fully_shard"
        )
    return None


def _fsdp2() -> tuple[type, ...]:
    """The class of what `fully_shard` has touched, if it was imported."""
    homes = (
        "torch.distributed.fsdp",
        "torch.distributed._composable.fsdp",
    )  # the second: before torch 2.6
    found = (getattr(sys.modules.get(home), "FSDPModule", None) for home in homes)
    return tuple(cls for cls in found if cls is not None)


def _param_groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = state._fsdp_param_group  # torch before 2.12
    return [] if one is None else [one]


def _groups_of_mesh(info: Any) -> list[Any]:
    names = ("replicate_process_group", "shard_process_group")
    return [group for name in names if (group := getattr(info, name, None)) is not None]


def _check_hook(hook: Any, state: Any, group: Any) -> None:
    known = getattr(hook, "__module__", None) in _AVERAGING
    inner = [c.cell_contents for c in getattr(hook, "__closure__", None) or ()]
    if known and isinstance(state, dist.ProcessGroup):
        known = state.size() == group.size()
    if not known or any(
        callable(c) and getattr(c, "__module__", None) not in _AVERAGING for c in inner
    ):
        raise EngineError(
            f"DDP has a communication hook that the Stepper does not know ({getattr(hook, '__qualname__', hook)}), so it cannot know "
            f"whether gradients are summed or averaged. {_SAY}"
        )

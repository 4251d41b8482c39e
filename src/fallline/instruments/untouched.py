"""Runs a piece of training code so that nothing outside of it changes: not the model, gradients, optimizers or randomness.

What exists before the run is found by asking the garbage collector, which knows every tensor, module and optimizer that
Python can reach. So a closure, a trainer object and a plain script are all treated alike, and nobody has to say what belongs to what.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fallline.engine import rng
from fallline.replay.modules import unwrap
from fallline.taps.backward import BACKWARD
from fallline.taps.tap import Reached, Subscription, replaying

__all__ = ["World", "is_scalar_loss", "leaves_of", "loss_of", "untouched"]

_PLAIN_TENSORS = (
    (Tensor, nn.Parameter, nn.Buffer) if hasattr(nn, "Buffer") else (Tensor, nn.Parameter)
)


class World:
    """Everything that is there before a run."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.modules: list[nn.Module] = []
        self.steppers: list[tuple[Any, dict[str, Callable[..., Any]]]] = []
        gc.collect()  # what is only waiting to be freed is not there
        for thing in gc.get_objects():
            kind = type(thing)
            if kind in _PLAIN_TENSORS:
                self.tensors[id(thing)] = thing
            elif issubclass(kind, nn.Module):
                self.modules.append(thing)
            elif issubclass(kind, torch.optim.Optimizer):
                self.steppers.append((thing, {"step": _nothing, "zero_grad": _nothing}))
            elif issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
                self.steppers.append((thing, {"step": _nothing}))
            elif issubclass(kind, torch.amp.GradScaler):
                muted = {"scale": _same, "unscale_": _nothing, "step": _nothing, "update": _nothing}
                self.steppers.append((thing, muted))

    @property
    def roots(self) -> list[nn.Module]:
        """Modules that are part of no other, without what wraps them for several ranks or for a compiler."""
        complete = [m for m in self.modules if _is_complete(m)]
        inner = {id(m) for module in complete for m in module._modules.values()}
        return [unwrap(m) for m in complete if id(m) not in inner]


def _is_complete(module: nn.Module) -> bool:
    return "_modules" in module.__dict__  # `super().__init__()` may not have been called yet


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _same(outputs: Any) -> Any:
    return outputs


@contextlib.contextmanager
def untouched(world: World, *, swap_buffers: bool = False) -> Iterator[None]:
    """Inside, a backward ends the code by `Reached`, steps do nothing, and random numbers and modules are put back afterwards.

    `swap_buffers` lets modules write into copies of their buffers, for code that runs on the tensors themselves.
    """
    random = rng.capture()
    modules = [(m, _state(m)) for m in world.modules if _is_complete(m)]
    stance: Any = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        stance = torch.compiler.set_stance("force_eager")
    try:
        if swap_buffers:
            for module, _ in modules:
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = buffer.clone()
        with stance, _muted(world), _backward_ends(), torch.enable_grad():
            yield
    finally:
        for module, state in modules:
            _put_back(module, state)
        rng.restore(random)


def _state(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    inner = {name: dict(module.__dict__[name]) for name in ("_parameters", "_buffers", "_modules")}
    return dict(module.__dict__), inner


def _put_back(module: nn.Module, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    attributes, inner = state
    module.__dict__.clear()
    module.__dict__.update(attributes)
    for name, entries in inner.items():
        held = module.__dict__[name]
        held.clear()
        held.update(entries)


@contextlib.contextmanager
def _muted(world: World) -> Iterator[None]:
    missing = object()
    kept: list[tuple[Any, str, Any]] = []
    try:
        for thing, methods in world.steppers:
            for name, method in methods.items():
                kept.append((thing, name, thing.__dict__.get(name, missing)))
                thing.__dict__[name] = method
        yield
    finally:
        for thing, name, value in reversed(kept):
            if value is missing:
                thing.__dict__.pop(name, None)
            else:
                thing.__dict__[name] = value


@contextlib.contextmanager
def _backward_ends() -> Iterator[None]:
    """A backward would write gradients: whoever runs the code takes the loss instead, and asks for gradients himself."""
    taps = Subscription()
    taps.before(BACKWARD, _nothing)  # so that the tap is there
    taps.start()
    try:
        with replaying():
            yield
    finally:
        taps.stop()


def is_scalar_loss(value: Any) -> bool:
    """Whether this can be the number that is minimised."""
    return isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()


def loss_of(run: Callable[[], Any]) -> tuple[Tensor | None, bool]:
    """What the code minimises, and whether it said so itself; else the mean square of what it returns stands for it."""
    try:
        result = run()
    except Reached as reached:
        result = reached.loss
    named = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
    if is_scalar_loss(named):
        return named, True
    if is_scalar_loss(result):
        return result, True
    values = [v for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, Tensor)]
    scalars = [v for v in values if is_scalar_loss(v) and v.requires_grad]
    if scalars:
        return scalars[0], True
    outputs = [v for v in values if v.is_floating_point() and v.numel()]
    if not outputs:
        return None, False
    squares = [v.float() if v.dtype != torch.float64 else v for v in outputs]
    return torch.stack([v.square().mean() for v in squares]).sum(), False


def leaves_of(loss: Tensor) -> list[Tensor]:
    """The tensors that a loss can have gradients for."""
    found: list[Tensor] = []
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
        stack += [following for following, _ in node.next_functions]
    return found

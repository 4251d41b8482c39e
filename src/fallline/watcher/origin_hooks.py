"""Backward hooks of the user's own: which of them makes a finite gradient non-finite.

No operation of the forward pass is to blame then, so they are stood in front of while a micro-batch is replayed: hooks on
parameters and modules, which are there already, and those that the replayed code registers on its tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

from fallline.replay.modules import Modules
from fallline.replay.named import NamedTensors
from fallline.replay.tensors import tensors_in
from fallline.watcher.origin_trace import ForwardTrace, Story, is_finite

__all__ = ["Hooks"]


class Hooks:
    """The hooks of one replay. `found`: the story of the first that spoilt what it was given."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.found: Story | None = None

    @contextmanager
    def followed(self, roots: Iterable[nn.Module]) -> Iterator[None]:
        changed: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        for hooks, module in _registered(roots):
            changed.append((hooks, dict(hooks)))
            for key, hook in hooks.items():
                hooks[key] = self._watched(hook, module)
        register = torch.Tensor.register_hook

        def register_hook(tensor: Tensor, hook: Any) -> Any:
            node = tensor.grad_fn
            number = node._sequence_nr() if node is not None else -1
            path = functools.partial(self.modules.of_node, number)
            return register(tensor, self._watched(hook, path))  # type: ignore[no-untyped-call]

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.register_hook = register  # type: ignore[method-assign]
            for hooks, before in changed:
                hooks.update(before)

    def _watched(self, hook: Callable[..., Any], path: Callable[[], str | None]) -> Any:
        def watched(*args: Any) -> Any:
            if self.found is not None or not all(map(is_finite, tensors_in(args))):
                return hook(*args)
            trace = ForwardTrace(NamedTensors(), self.modules)
            with trace:
                result = hook(*args)
            # it may also have changed what it was given
            bad = next((t for t in tensors_in((result, args)) if not is_finite(t)), None)
            if bad is not None:
                self.found = trace.story(bad) or Story("hook", None, None)
                self.found.hook, self.found.module = _name(hook), path()
            return result

        return watched


def _registered(
    roots: Iterable[nn.Module],
) -> Iterator[tuple[dict[Any, Any], Callable[[], str | None]]]:
    """Hooks that are there before the forward pass, and the module path they belong to."""
    for hooks in (global_hooks._global_backward_hooks, global_hooks._global_backward_pre_hooks):
        yield hooks, lambda: None
    seen: set[int] = set()
    for root in roots:
        for name, module in root.named_modules():
            for hooks in (module._backward_hooks, module._backward_pre_hooks):
                yield hooks, functools.partial(str, name)
            for parameter in module.parameters(recurse=False):
                own: Any = parameter._backward_hooks
                if own and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield own, functools.partial(str, name)


def _name(hook: Any) -> str:
    """What the user calls it: `scale` for `main.<locals>.scale`."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", type(hook).__qualname__)
    return str(name).rpartition("<locals>.")[2]

"""What a model holds without having it registered, what it holds twice, and what nothing trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Unregistered", "not_optimized", "shared_parameters", "unregistered"]

_OWN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_DEEPEST = 3


@dataclass(frozen=True)
class Unregistered:
    """Something that `parameters()`, `to()` and `state_dict()` do not see."""

    path: str  # as one would write it after `model.`
    kind: str  # "module" | "parameter" | "tensor"
    what: str
    parameters: int  # elements that are not trained
    fix: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "kind": self.kind,
            "what": self.what,
            "parameters": self.parameters,
            "fix": self.fix,
        }


def unregistered(model: nn.Module) -> list[Unregistered]:
    """Modules in plain lists and dicts, tensors with requires_grad as plain attributes; tensors that should be buffers."""
    known = {id(m) for m in model.modules()} | {id(p) for p in model.parameters()}
    known |= {id(b) for b in model.buffers()}
    found: list[Unregistered] = []
    for name, module in list(model.named_modules()):
        prefix = f"{name}." if name else ""
        for path, value, container in _held(module):
            if id(value) in known:
                continue
            known.add(id(value))  # the second name of the same thing is not a second mistake
            found.append(_described(prefix + path, value, container))
    return found


def _held(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """(path, module or tensor, what it lies in) of everything that is not a registered part."""
    for name, value in list(vars(module).items()):
        if name in _OWN or (name.startswith("_") and name.endswith("_hooks")):
            continue
        yield from _inside(name, value, "", 0)


def _inside(path: str, value: Any, container: str, depth: int) -> Iterator[tuple[str, Any, str]]:
    if isinstance(value, nn.Module | Tensor):
        yield path, value, container
    elif depth < _DEEPEST and isinstance(value, list | tuple | set):
        for i, item in enumerate(value):
            yield from _inside(f"{path}[{i}]", item, type(value).__name__, depth + 1)
    elif depth < _DEEPEST and isinstance(value, dict):
        for key, item in value.items():
            yield from _inside(f"{path}[{key!r}]", item, "dict", depth + 1)
    elif depth < 1 and _is_plain_object(value):
        for name, item in vars(value).items():
            yield from _inside(f"{path}.{name}", item, type(value).__name__, depth + 1)


def _is_plain_object(value: Any) -> bool:
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, type)
        and kind.__module__.partition(".")[0] not in ("torch", "builtins", "functools")
    )


def _described(path: str, value: Any, container: str) -> Unregistered:
    attribute = path.rpartition(".")[2].partition("[")[0]
    if isinstance(value, nn.Module):
        count = sum(p.numel() for p in value.parameters())
        home = "nn.ModuleDict" if container == "dict" else "nn.ModuleList"
        fix = f"self.{attribute} = {home}(...) in place of the {container or 'attribute'}"
        if not container:
            fix = f"assign it in the usual way: self.{attribute} = ..."
        elif container not in ("list", "tuple", "set", "dict"):
            fix = f"make {container} an nn.Module, or assign its layers to the model itself"
        return Unregistered(
            path,
            "module",
            f"{type(value).__name__} in a plain {container or 'attribute'}",
            count,
            fix,
        )
    shape = "x".join(map(str, value.shape)) or "scalar"
    if value.requires_grad and value.is_leaf:
        home = "nn.ParameterDict" if container == "dict" else "nn.ParameterList"
        fix = (
            f"self.{attribute} = {home}(...)"
            if container
            else f"self.{attribute} = nn.Parameter(...)"
        )
        kind = "Parameter" if isinstance(value, nn.Parameter) else "tensor with requires_grad"
        return Unregistered(
            path,
            "parameter",
            f"{kind} ({shape}) as a plain {container or 'attribute'}",
            value.numel(),
            fix,
        )
    fix = f"self.register_buffer({attribute!r}, ...), so that to() moves it and state_dict() can hold it"
    return Unregistered(
        path, "tensor", f"tensor ({shape}) as a plain {container or 'attribute'}", 0, fix
    )


def shared_parameters(model: nn.Module) -> list[list[str]]:
    """Names that stand for the same parameter, or for parameters in the same memory."""
    names: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(_memory(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _memory(parameter: Tensor) -> Any:
    try:
        pointer = parameter.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(parameter)
    return (pointer, parameter.device) if pointer else id(parameter)


def not_optimized(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> list[str]:
    """Parameters that require gradients and are in no optimizer."""
    held = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]

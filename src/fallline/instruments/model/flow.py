"""How signal and gradient go through a model, layer by layer, for one batch; and which units never fire in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.instruments.untouched import World, loss_of, untouched
from fallline.instruments.where import user_line
from fallline.location import Location
from fallline.replay.modules import Modules
from fallline.replay.tensors import plain_name, tensors_in

__all__ = ["IN_A_ROW", "Flow", "Layer", "Silent", "flow_of"]

_CALLS = 64  # of one module, that are looked at
IN_A_ROW = 3  # layers, before their gradients say something about depth
_SATURATED = 0.99  # of the distance to the limit that a sigmoid or tanh has left behind


@dataclass
class Layer:
    """A module with parameters of its own, in the order in which they are called."""

    name: str
    kind: str
    signal_in: float | None = None  # root mean square of what goes in
    signal_out: float | None = None
    gradient_out: float | None = None  # of the loss with respect to what comes out
    weight_gradient: float | None = None  # of all its own parameters
    shape: tuple[int, ...] = ()  # of its weight, where it mixes units
    zero_rows: int = 0  # units whose weights get a gradient of exactly zero
    rows: int = 0

    @property
    def gain(self) -> float | None:
        if self.signal_in is None or self.signal_out is None or self.signal_in == 0:
            return None
        return self.signal_out / self.signal_in

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "signal_in": self.signal_in,
            "signal_out": self.signal_out,
            "gain": self.gain,
            "gradient_out": self.gradient_out,
            "weight_gradient": self.weight_gradient,
            "rows_without_gradient": self.zero_rows,
            "rows": self.rows,
        }


@dataclass
class Silent:
    """Units of an activation that are zero, or at their limit, for the whole batch."""

    op: str
    module: str | None
    at: Location | None
    units: int
    dead: list[int] = field(default_factory=list)
    saturated: int = 0
    seen: int = 0  # values that each unit had

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "module": self.module,
            "path": self.at.path if self.at else None,
            "line": self.at.line if self.at else None,
            "units": self.units,
            "dead": len(self.dead),
            "dead_units": self.dead[:64],
            "saturated": self.saturated,
            "values_per_unit": self.seen,
        }


@dataclass
class Flow:
    """One batch, forward and backward."""

    layers: list[Layer] = field(default_factory=list)
    activations: list[Silent] = field(default_factory=list)
    without_gradient: list[str] = field(default_factory=list)  # not reached by the loss
    zero_gradient: list[str] = field(default_factory=list)
    not_called: list[str] = field(default_factory=list)
    loss: float | None = None
    loss_given: bool = True

    @property
    def depth(self) -> list[Layer]:
        """The layers that stand in a row: the same kind, shape and name but for a number (`blocks.3.up`, `fc2`).

        Only those can be compared. A query and a classifier have other gradients in a healthy model too. Of several rows it is
        the one whose gradient changes most.
        """
        rows: dict[Any, list[Layer]] = {}
        for layer in self.layers:
            if layer.shape and layer.gradient_out is not None:
                pattern = re.sub(r"\d+", "#", layer.name)
                rows.setdefault((layer.kind, layer.shape, pattern), []).append(layer)
        long = [row for row in rows.values() if len(row) >= IN_A_ROW]
        return max(long, key=lambda row: abs(math.log(_ratio(row) or 1e-300)), default=[])

    @property
    def early_to_late(self) -> float | None:
        """The gradient that arrives at the first layer's output, over the last one's: 1 is even, below it vanishes."""
        return _ratio(self.depth) if self.depth else None


def _ratio(row: list[Layer]) -> float:
    early, late = row[0].gradient_out, row[-1].gradient_out
    assert early is not None and late is not None
    return early / late if late else (1.0 if not early else math.inf)


def flow_of(model: nn.Module, run: Callable[[], Any], world: World) -> Flow:
    """Run the code once, with the model untouched."""
    flow = Flow()
    names = Modules([model])
    hooks = _Hooks(model)
    watch = _Activations(names)
    with untouched(world, swap_buffers=True):
        with names.followed(), hooks.placed(), watch:
            loss, flow.loss_given = loss_of(run)
        flow.layers = hooks.layers
        flow.activations = watch.found
        called = hooks.called
        if loss is not None:
            flow.loss = float(loss.detach())
            if loss.requires_grad:
                _gradients(flow, model, hooks, loss)
    flow.not_called = [
        name
        for name, module in model.named_modules()
        if id(module) not in called and any(True for _ in module.parameters(recurse=False))
    ]
    return flow


def _gradients(flow: Flow, model: nn.Module, hooks: _Hooks, loss: Tensor) -> None:
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    outputs = [(layer, t) for layer, t in hooks.outputs if t.requires_grad]
    wanted = [*(p for _, p in parameters), *(t for _, t in outputs)]
    made = torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=True)
    of_parameter = {id(p): g for (_, p), g in zip(parameters, made, strict=False)}
    flow.without_gradient = [n for n, p in parameters if of_parameter[id(p)] is None]
    flow.zero_gradient = [
        n for n, p in parameters if (g := of_parameter[id(p)]) is not None and not bool(g.any())
    ]
    arrived: dict[int, list[Tensor]] = {}
    for (layer, _), gradient in zip(outputs, made[len(parameters) :], strict=True):
        if gradient is not None:
            arrived.setdefault(id(layer), []).append(gradient.flatten())
    for layer in flow.layers:
        if id(layer) in arrived:
            layer.gradient_out = _rms(torch.cat(arrived[id(layer)]))
    for layer, module in hooks.modules:
        own = [of_parameter.get(id(p)) for p in module.parameters(recurse=False)]
        held = [g for g in own if g is not None]
        if held:
            layer.weight_gradient = sum(float(g.double().square().sum()) for g in held) ** 0.5
        weight = getattr(module, "weight", None)
        of_weight = of_parameter.get(id(weight))
        if layer.rows and of_weight is not None:
            flat = of_weight.movedim(_out_dim(module), 0).flatten(1)
            layer.zero_rows = int((~flat.any(1)).sum())


_MIXING = (nn.Linear, nn.modules.conv._ConvNd)


def _out_dim(module: nn.Module) -> int:
    return 1 if isinstance(module, nn.modules.conv._ConvTransposeNd) else 0


def _rms(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean().sqrt()) if tensor.numel() else 0.0


class _Hooks:
    """What goes in and comes out of every module that has parameters of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(m): n for n, m in model.named_modules()}
        self.layers: list[Layer] = []
        self.modules: list[tuple[Layer, nn.Module]] = []
        self.outputs: list[tuple[Layer, Tensor]] = []
        self.called: set[int] = set()

    @contextmanager
    def placed(self) -> Iterator[None]:
        handle = global_hooks.register_module_forward_hook(self._after)
        try:
            yield
        finally:
            handle.remove()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self.called.add(id(module))
        if id(module) not in self.names or not any(True for _ in module.parameters(recurse=False)):
            return
        if isinstance(module, nn.MultiheadAttention):
            # it uses the weight of its out_proj without calling it
            self.called |= {id(m) for m in module.children()}
        made = [t for t in tensors_in(output) if t.is_floating_point()]
        layer = next((x for x, known in self.modules if known is module), None)
        if layer is None:
            layer = self._new(module, args, made)
        if made and sum(x is layer for x, _ in self.outputs) < _CALLS:
            self.outputs.append((layer, made[0]))

    def _new(self, module: nn.Module, args: Any, made: list[Tensor]) -> Layer:
        layer = Layer(self.names[id(module)], type(module).__name__)
        if isinstance(module, _MIXING):
            layer.shape = tuple(module.weight.shape)
            layer.rows = layer.shape[_out_dim(module)]
        given = [t for t in tensors_in(args) if t.is_floating_point()]
        layer.signal_in = _rms(given[0]) if given else None
        layer.signal_out = _rms(made[0]) if made else None
        self.layers.append(layer)
        self.modules.append((layer, module))
        return layer


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at what comes out of relu, sigmoid and tanh, wherever they are called."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules = modules
        self.found: list[Silent] = []
        self._known: dict[Any, Silent] = {}
        self._silent: dict[int, set[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = plain_name(func._schema.name)
        if name == "clamp_min" and len(args) > 1 and args[1] == 0:
            name = "relu"
        if name in ("relu", "sigmoid", "tanh", "hardtanh") and isinstance(result, Tensor):
            if result.ndim >= 2 and torch._C._current_autograd_node() is None:
                self._look(name, result.detach())
        return result

    def _look(self, name: str, out: Tensor) -> None:
        # (batch, channels, ...) for pictures, (batch, ..., units) for the rest
        units = out.movedim(1 if out.ndim >= 4 else -1, 0).flatten(1)
        found = Silent(name, self.modules.current, user_line(), len(units), seen=units.shape[1])
        silent = (units == 0) if name in ("relu", "hardtanh") else _at_its_limit(name, units)
        numbers = silent.all(1).nonzero().flatten().tolist()
        key = (name, found.module, found.at, found.units)
        known = self._known.get(key)
        if (
            known is None
        ):  # a recurrent layer calls it at every step: silent is who was it at all of them
            self._known[key] = known = found
            self.found.append(found)
            self._silent[id(found)] = set(numbers)
        else:
            known.seen += units.shape[1]
            self._silent[id(known)] &= set(numbers)
        remaining = sorted(self._silent[id(known)])
        if name in ("relu", "hardtanh"):
            known.dead = remaining
        else:
            known.saturated = len(remaining)


def _at_its_limit(name: str, units: Tensor) -> Tensor:
    middle = (units - 0.5) * 2 if name == "sigmoid" else units
    return middle.abs() > _SATURATED

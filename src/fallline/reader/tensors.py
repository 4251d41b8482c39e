"""Tensors: backward, reductions, waiting for the device; gradients and parameters by hand."""

from __future__ import annotations

import ast
import re

from fallline.events import Event, Kind
from fallline.reader import grads
from fallline.reader.call import Call
from fallline.reader.evaluate import ATTRIBUTES, WAITS
from fallline.reader.machine import Machine
from fallline.reader.protocol import enabled
from fallline.reader.values import (
    NONE,
    Bound,
    Const,
    Param,
    Sequence,
    Tensor,
    Unknown,
    Value,
    replace,
)

__all__ = [
    "backward",
    "gradient",
    "parameter",
    "perhaps_used",
    "pieces",
    "reduce",
    "sync",
    "tensor",
]


def backward(
    machine: Machine,
    found: Value,
    call: Call,
    normalised: str | None = None,
    window: int | None = None,
) -> None:
    """The backward of a loss, with all that is known about how the loss came to be."""
    loss = found if isinstance(found, Tensor) else Tensor(None, divided=None)
    known = loss.graph is not None or bool(loss.forwards)
    loss.graph = True  # whatever it was, it has a graph, or this would raise
    forwards = [machine.events[i] for i in sorted(loss.forwards)]
    trained = [f for f in forwards if f.fact("grad")]
    wrapped = [f for f in trained if f.fact("wrapper") and not f.fact("bypass")][-1:]
    model = machine.things.get(trained[-1].model or "") if trained else None
    scaled = loss.scaler is not None and enabled(machine, loss.scaler)
    in_no_sync = bool(machine.unsynced)
    keep = machine.settled(call.arg(None, "retain_graph") or Const(False))
    create = machine.settled(call.arg(None, "create_graph") or Const(False))
    if machine.anomaly is not None and machine.iteration:
        machine.emit(Kind.ANOMALY, machine.anomaly)
        machine.anomaly = None
    models = {f.model for f in trained}
    event = machine.emit(
        Kind.BACKWARD,
        call.node,
        model=model,
        scaler=loss.scaler if scaled else None,
        scaled=scaled if known or loss.scaler else None,
        divided=loss.divided,
        divisor=loss.divisor,
        divided_by=loss.divided_by or None,
        normalised=normalised,
        window=window,
        reduction=loss.reduction,
        ragged=loss.ragged or None,
        in_batch=loss.in_batch or None,
        autocast=machine.autocast[-1] if machine.autocast[-1] != "disabled" else "off",
        no_sync=in_no_sync if wrapped or in_no_sync else None,
        sync=(not any(f.fact("no_sync") for f in wrapped)) if wrapped else None,
        wrapper=wrapped[-1].fact("wrapper") if wrapped else None,
        retain_graph=bool(keep.value) if isinstance(keep, Const) and keep.value else None,
        create_graph=bool(create.value) if isinstance(create, Const) and create.value else None,
        half_parameters=any(t.facts.get("half") for t in machine.things.values() if t.id in models)
        or None,
        site=machine.site(call.node),
        terms=loss.terms,
        parameters=loss.sets or None,
    )
    _settle_history(machine, loss, event)


def _settle_history(machine: Machine, loss: Tensor, event: Event) -> None:
    for index in loss.kept:
        machine.events[index].facts["reaches_backward"] = True
    for index in loss.forwards:
        machine.events[index].facts["used"] = True
    if not loss.forwards:
        perhaps_used(machine)
    for earlier, graph in machine.retained:
        if not loss.forwards.isdisjoint(graph):
            earlier.facts["second"] = True
    if event.facts.get("retain_graph"):
        machine.retained.append((event, loss.forwards))


def perhaps_used(machine: Machine) -> None:
    """A gradient of something that could not be followed: any evaluation of this iteration may be in it."""
    start = machine.begun[-1][1] if machine.begun else 0
    for event in machine.events[start:]:
        if event.kind is Kind.FORWARD and event.fact("training") is False:
            machine.undecided.add(event.order)


def sync(machine: Machine, tensor: Tensor, what: str, node: ast.AST) -> None:
    """The host waits for the device."""
    if machine.iteration and not machine.inside_model and not tensor.host:
        uses_cuda = "cuda" in machine.module.source.text
        machine.emit(
            Kind.SYNC,
            node,
            what=what,
            per_parameter=bool(machine.loops and machine.loops[-1] == "params") or None,
            device="cuda" if uses_cuda else None,
        )


_DETACHED = frozenset(
    {
        "detach",
        "detach_",
        "numpy",
        "tolist",
        "item",
        "argmax",
        "argmin",
        "eq",
        "ne",
        "gt",
        "lt",
        "ge",
        "le",
        "long",
        "int",
        "bool",
        "sample",
        "multinomial",
    }
)
# No method of a tensor that computes is called so: it is a batch, a graph or an output that was taken for one.
_ASKS = re.compile(r"num_|number_of_|get_|is_|has_")
_SYNCS = {"item": "item", "cpu": "cpu", "tolist": "tolist", "numpy": "cpu"}


def tensor(machine: Machine, value: Tensor, name: str, call: Call) -> Value:
    """A method of a tensor."""
    if name == "backward":
        backward(machine, value, call)
        return NONE
    if value.grad_of is not None:
        return gradient(machine, value, name, call)
    if name in _SYNCS:
        sync(machine, value, _SYNCS[name], call.node)
        if name == "item":
            return Unknown()
        if name != "cpu":
            return Tensor(False, length=value.length, host=True)
        return replace(value, host=True)
    if name in _DETACHED:
        return replace(value, graph=False, kept=frozenset(), forwards=frozenset(), sets=frozenset())
    if name in {"chunk", "split", "tensor_split", "unbind"}:
        return pieces(machine, value, call)
    if name in {"requires_grad_"}:
        value.graph, value.leaf = True, True
        return value
    if name in {"size", "dim", "numel"} or _ASKS.match(name):
        return Unknown(name)
    if name in {"float", "double"}:
        return replace(value, half=None)
    if name in {"half", "bfloat16"}:
        return replace(value, half="float16" if name == "half" else "bfloat16")
    return reduce(machine, value, name, call)


def _attribute(machine: Machine, value: Tensor, name: str, node: ast.AST) -> Value:
    """`tensor.name`, where it is not called."""
    if name == "grad":
        if value.leaf or not value.forwards:
            grads.read(machine, frozenset(), "input", node)
        return Tensor(False, grad_of=value.sets or frozenset({"?"}), leaf=True)
    if name == "data":
        return (
            replace(value, graph=False, kept=frozenset(), forwards=frozenset())
            if value.grad_of is None
            else value
        )
    if name == "loss":
        # a framework model's own loss: a mean over its batch
        return replace(value, reduction=value.reduction or ("mean" if value.forwards else None))
    if name in {"shape", "device", "dtype", "ndim", "names"}:
        return Unknown(name)
    if name in {"logits", "T", "mT", "real", "imag", "last_hidden_state"}:
        return value
    if value.forwards:
        # a part of what a model returned (`.sample`, `.hidden_states`): with its graph, if it is a tensor at all
        return replace(value, graph=None if value.graph else value.graph)
    return Bound(value, name)


def reduce(machine: Machine, tensor: Tensor, name: str, call: Call) -> Tensor:
    """A function of a tensor, as far as how the loss reduces and scales goes."""
    from fallline.reader.evaluate import divided, merged

    result = tensor
    for value in map(machine.settled, call.values):
        if isinstance(value, Tensor) and value is not tensor and value.grad_of is None:
            result = merged(result, value)
    if name in {"mean", "nanmean"}:
        return replace(
            result,
            reduction="mean",
            divided=False if result.divided is None else result.divided,
        )
    if name == "sum":
        return replace(
            result,
            reduction=result.reduction if result.reduction == "mean" else "sum",
            depth=len(machine.loops),
        )
    if name in {"div", "div_", "true_divide"}:
        other = call.arg(0 if isinstance(call.node.func, ast.Attribute) else 1, "other")
        if other is not None and not isinstance(machine.settled(other), Tensor):
            return divided(machine, result, machine.settled(other), call.node)
    if name in {"detach"}:
        return replace(
            result, graph=False, forwards=frozenset(), kept=frozenset(), sets=frozenset()
        )
    if not machine.recording:
        return replace(result, graph=False)
    return replace(result)


def pieces(machine: Machine, tensor: Tensor, call: Call) -> Value:
    from fallline.reader.machine import count_of

    given = call.arg(0, "chunks", "split_size_or_sections", "split_size", "sections")
    count = count_of(machine, machine.settled(given)) if given is not None else None
    number = count if count is not None and 1 <= count <= 8 else 2
    return Sequence(
        [replace(tensor) for _ in range(max(number, 2) if count != 1 else 1)], machine.iteration
    )


def gradient(machine: Machine, grad: Tensor, name: str, call: Call) -> Value:
    """A method of `p.grad`."""
    assert grad.grad_of is not None
    sets = frozenset() if "?" in grad.grad_of else grad.grad_of
    if name in {"zero_", "fill_"}:
        machine.emit(Kind.ZERO_GRAD, call.node, clears="grad", parameters=sets or None)
        return NONE
    operations = {
        "div_": "div",
        "mul_": "mul",
        "add_": "noise",
        "copy_": "assign",
        "clamp_": "other",
        "sub_": "add",
        "data": "other",
    }
    if name == "clamp_":
        machine.emit(Kind.CLIP, call.node, how="value", parameters=sets or None)
        return NONE
    if name in operations:
        grads.write(machine, sets, operations[name], call.node)
        return grad
    if name in {
        "detach",
        "clone",
        "float",
        "to",
        "view",
        "reshape",
        "flatten",
        "data",
        "abs",
        "square",
        "pow",
    }:
        return grad
    if name in {"detach_", "requires_grad_"}:
        return grad
    if name in {"size", "dim", "numel", "new", "type", "element_size", "is_floating_point"}:
        return Unknown(name)
    grads.read(machine, sets, "norm" if "norm" in name else "value", call.node)
    return Tensor(False)


def parameter(machine: Machine, value: Param, name: str, call: Call) -> Value:
    """A method of a parameter."""
    if (
        name.endswith("_")
        and not name.startswith("_")
        and name not in {"requires_grad_", "register_hook"}
    ):
        if any(isinstance(machine.settled(v), Tensor) for v in call.values):
            grads.used(machine, NONE, value.sets, call.node)
        return value
    if name in {"register_hook", "register_post_accumulate_grad_hook"}:
        machine.emit(Kind.OPAQUE, call.node, what=name)
        return NONE
    if name in {"numel", "size", "dim", "nelement"}:
        return Unknown(name)
    return Tensor(True, value.sets)


WAITS.append(sync)
ATTRIBUTES[Tensor] = _attribute

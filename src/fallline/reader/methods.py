"""What the methods of training objects and tensors do: the protocol itself."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from fallline.event import Event, Kind, Location
from fallline.reader import frameworks, grads
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts_here
from fallline.reader.values import (
    NONE,
    Bound,
    Const,
    Context,
    External,
    Function,
    Mapping,
    Param,
    Params,
    Partial,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
)

if TYPE_CHECKING:
    from fallline.reader.calls import Call

__all__ = ["backward", "call_method", "call_thing", "call_unknown", "knows", "reduce", "shaped", "sync"]


def call_method(machine: Machine, found: Value, name: str, call: Call) -> Value:
    """`found.name(...)` of something that is no class of the project."""
    from fallline.reader.calls import _derived

    value = machine.settled(found)
    if isinstance(value, Thing):
        handler = _METHODS.get((value.kind, name))
        if handler is not None:
            return handler(machine, value, call)
        special = frameworks.method(machine, value, name, call)
        if special is not None:
            return special
        if value.kind == "iterator":
            return value
        return Unknown()
    if isinstance(value, Tensor):
        return _tensor(machine, value, name, call)
    if isinstance(value, Param):
        return _parameter(machine, value, name, call)
    if isinstance(value, Params):
        return value
    if isinstance(value, Sequence):
        return _sequence(machine, value, name, call)
    if isinstance(value, Mapping):
        return _mapping(machine, value, name, call)
    if isinstance(value, Function) and name in {"backward", "apply"}:
        return _derived(call)
    if isinstance(value, Const) and isinstance(value.value, str):
        return Unknown("text")
    if isinstance(value, Context) and name == "__enter__":
        return NONE
    return _derived(call)


def knows(thing: Thing, name: str) -> bool:
    """Whether this is a method of the object's torch class."""
    return (thing.kind, name) in _METHODS


def call_unknown(machine: Machine, value: Unknown, name: str, call: Call) -> Value | None:
    """A method of something unknown that only a training object has, or that its name suggests."""
    if name == "backward" and kind_by_name(value.hint) not in {"accelerator", "fabric"} and not call.values:
        backward(machine, Tensor(None, divided=None), call)
        return NONE
    kind = kind_by_name(value.hint)
    if kind is None and name == "zero_grad":
        kind = "model" if not value.parts else None
    if name in {"unscale_", "get_scale"}:
        kind = "scaler"
    if kind is not None and (kind, name) in _METHODS and not (kind == "loader"):
        return call_method(machine, machine.become(value, kind), name, call)
    if kind in {"accelerator", "fabric"}:
        return frameworks.method(machine, machine.become(value, kind), name, call)
    if name == "backward" and call.args:
        # engine.backward(loss), trainer.backward(loss): somebody else's protocol
        machine.emit(Kind.OPAQUE, call.node, what=f"{value.hint}.backward")
        return NONE
    if name in {"parameters", "named_parameters"}:
        return call_method(machine, machine.become(value, "model"), name, call)
    if name in {"chunk", "split", "unbind", "tensor_split"}:
        return _pieces(machine, Tensor(False), call)
    if name in {"to", "cuda", "float", "half", "cpu", "detach", "clone"}:
        return value
    if name in {"item"}:
        return Unknown()
    return None


# -- models ------------------------------------------------------------------------------------------------------


def call_thing(machine: Machine, thing: Thing, call: Call) -> Value:
    """An object is called: a model's forward, a loss, an instance with `__call__`."""
    from fallline.reader.calls import call_function
    from fallline.reader.objects import find_method
    from fallline.reader.torch_api import _of_arguments

    if thing.kind == "model":
        return _forward(machine, thing, call)
    if thing.kind == "criterion":
        return _criterion(machine, thing, call)
    if thing.cls is not None:
        method = find_method(*thing.cls, "__call__")
        if method is not None:
            return call_function(machine, Function(method[1], method[0], None, thing), call.args, call.kwargs, call.node)
    if thing.kind == "engine":
        return _forward(machine, thing, call)
    return _of_arguments(machine, call)


def _criterion(machine: Machine, thing: Thing, call: Call) -> Value:
    from fallline.reader.torch_api import _of_arguments

    if thing.cls is not None:
        inside = _run_forward(machine, thing, call)
        if isinstance(inside, Tensor):
            return inside
    return replace(
        _of_arguments(machine, call),
        reduction=thing.facts.get("reduction") or (None if thing.cls or "type" not in thing.facts else "mean"),
        ragged=bool(thing.facts.get("ragged")),
        divided=False,
        scalar=True,
        half=None,
        depth=len(machine.loops),
    )


def _forward(machine: Machine, model: Thing, call: Call) -> Value:
    from fallline.reader.torch_api import _of_arguments

    given = _of_arguments(machine, call)
    event: Event | None = None
    if not machine.inside_model:
        outer = model.facts.get("of") if model.facts.get("bypasses") else None
        identity = machine.things.get(outer, model) if isinstance(outer, str) else model
        event = machine.emit(
            Kind.FORWARD,
            _outside(machine, call.node),
            model=identity,
            training=model.facts.get("training"),
            grad=machine.recording,
            autocast=machine.autocast[-1] if machine.autocast[-1] != "disabled" else "off",
            no_sync=(identity.id in machine.unsynced) if identity.facts.get("wrapper") or identity.id in machine.unsynced else None,
            wrapper=model.facts.get("wrapper") if not model.facts.get("bypasses") else model.facts.get("bypasses"),
            bypass=True if model.facts.get("bypasses") == "ddp" else None,
            parameters=model.sets or None,
        )
    inside = _run_forward(machine, model, call)
    graph = machine.recording and model.facts.get("frozen") is not True
    half = machine.autocast[-1] if machine.autocast[-1] in {"float16", "bfloat16"} else None
    result = Tensor(
        True if graph else bool(given.graph) if machine.recording else False,
        (model.sets if graph else frozenset()) | given.sets,
        (frozenset({event.order}) if event is not None else frozenset()) | given.forwards,
        given.kept,
        half=half,
        length=given.length,
    )
    return shaped(inside, result) if inside is not None else result


def _outside(machine: Machine, node: ast.AST) -> Location:
    """Where a model is called from: for a part called in one of the model's own methods, where that method was called."""
    depth = 0
    for frame, function in zip(reversed(machine.frames), reversed(machine.calling), strict=False):
        if frame.me is None or frame.me.kind != "model" or acts_here([function]):
            break
        depth += 1
    return machine.callers[-depth] if 0 < depth <= len(machine.callers) else machine.place(node)


def shaped(inside: Value, result: Tensor) -> Value:
    """What forward returned, each tensor in it carrying this call's graph."""
    if isinstance(inside, Sequence):
        return Sequence([shaped(i, result) for i in inside.items], inside.born)
    if isinstance(inside, Mapping):
        return Mapping({k: shaped(v, result) for k, v in inside.items.items()}, inside.born)
    if isinstance(inside, Tensor):
        return replace(
            inside,
            graph=inside.graph or result.graph,
            sets=inside.sets | result.sets,
            forwards=inside.forwards | result.forwards,
            kept=inside.kept | result.kept,
        )
    if isinstance(inside, Const):
        return inside
    return replace(result) if result.graph is not False or result.forwards else inside


_TELLING = frozenset(
    "cross_entropy mse_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits l1_loss smooth_l1_loss checkpoint "
    "autocast kl_div item criterion loss_fn loss_fct loss mean sum".split()
)


def _run_forward(machine: Machine, model: Thing, call: Call) -> Value | None:
    """Run a project model's own forward once a trace: what it returns does not change."""
    from fallline.reader.calls import call_function
    from fallline.reader.objects import find_method
    from fallline.reader.relevance import called_names

    if model.cls is None:
        return None
    if "returns" in model.attrs:
        return model.attrs["returns"]
    method = find_method(*model.cls, "forward")
    if method is None or called_names(method[1]).isdisjoint(_TELLING):
        return None
    model.attrs["returns"] = Tensor(None, divided=None)  # a forward that calls itself
    machine.inside_model += 1
    saved = machine.autocast
    try:
        found = call_function(machine, Function(method[1], method[0], None, model), call.args, call.kwargs, call.node)
    finally:
        machine.inside_model -= 1
        machine.autocast = saved
    model.attrs["returns"] = found
    return found


def _train(machine: Machine, model: Thing, call: Call) -> Value:
    mode = machine.settled(call.arg(0, "mode") or Const(True))
    on = bool(mode.value) if isinstance(mode, Const) else None
    _set_mode(machine, model, on, call)
    return model


def _eval(machine: Machine, model: Thing, call: Call) -> Value:
    _set_mode(machine, model, False, call)
    return model


def _set_mode(machine: Machine, model: Thing, training: bool | None, call: Call) -> None:
    family = [model, *(t for t in machine.things.values() if t.kind == "model" and t.sets and t.sets == model.sets)]
    for member in family:
        if training is None:
            member.facts.pop("training", None)
        else:
            member.facts["training"] = training
        inner = member.attrs.get("module")
        if isinstance(inner, Thing) and training is not None:
            inner.facts["training"] = training
    if training is not None and not machine.inside_model:
        machine.emit(Kind.MODE, call.node, model=model, mode="train" if training else "eval", parameters=model.sets or None)


def _moved(machine: Machine, model: Thing, call: Call) -> Value:
    """`model.to(device)`: itself; too late when DDP already holds it."""
    if model.facts.get("wrapped_by") and not machine.iteration and isinstance(call.node.func, ast.Attribute):
        machine.emit(Kind.REPLACE, call.node, model=model, what="moved", parameters=model.sets)
    return _half_if_asked(machine, model, call)


def _half_if_asked(machine: Machine, model: Thing, call: Call) -> Value:
    for value in map(machine.settled, call.values):
        if isinstance(value, External) and value.name in {"torch.float16", "torch.half"}:
            model.facts["half"] = True
    return model


def _full(machine: Machine, model: Thing, call: Call) -> Value:
    model.facts["half"] = None
    return model


def _half(machine: Machine, model: Thing, call: Call) -> Value:
    model.facts["half"] = True
    return model


def _parameters(machine: Machine, model: Thing, call: Call) -> Value:
    return Params(model.sets, module=bool(model.facts.get("one_of_modules")))


def _named_parameters(machine: Machine, model: Thing, call: Call) -> Value:
    return Params(model.sets, named=True)


def _modules(machine: Machine, model: Thing, call: Call) -> Value:
    part = Thing("model", model.id + ".part", model.at, {**model.facts, "one_of_modules": True}, {}, None)
    named = isinstance(call.node.func, ast.Attribute) and call.node.func.attr.startswith("named")
    item: Value = Sequence([Unknown("name"), part]) if named else part
    return Thing("iterator", "modules", None, {"wrap": "modules", "of": [Sequence([item])]})


def _self(machine: Machine, thing: Thing, call: Call) -> Value:
    return thing


def _requires_grad(machine: Machine, model: Thing, call: Call) -> Value:
    on = machine.settled(call.arg(0, "requires_grad") or Const(True))
    if isinstance(on, Const):
        model.facts["frozen"] = not on.value
    return model


def _model_zero_grad(machine: Machine, model: Thing, call: Call) -> Value:
    machine.emit(Kind.ZERO_GRAD, call.node, model=model, clears="grad", parameters=model.sets or None)
    return NONE


def _no_sync(machine: Machine, model: Thing, call: Call) -> Value:
    if model.facts.get("assumed") or not model.facts.get("wrapper"):
        model.facts["wrapper"] = "ddp"  # only DDP (and FSDP) has no_sync
    return Context("no_sync", None, model)


def _sync_flag(machine: Machine, model: Thing, call: Call) -> Value:
    """FSDP2: set_requires_gradient_sync(flag)."""
    flag = machine.settled(call.arg(0, "requires_gradient_sync") or Const(True))
    on = bool(flag.value) if isinstance(flag, Const) else True
    model.facts["wrapper"] = "fsdp2"
    machine.unsynced = [m for m in machine.unsynced if m != model.id] + ([] if on else [model.id])
    return NONE


def _model_clip(machine: Machine, model: Thing, call: Call) -> Value:
    from fallline.reader.torch_api import clip

    return clip(machine, call, "norm", model, call.arg(0, "max_norm"), local_shards=False)


# -- optimizers, scalers, schedulers -----------------------------------------------------------------------------


def _zero_grad(machine: Machine, optimizer: Thing, call: Call) -> Value:
    if not frameworks.stepping(machine, optimizer):
        return NONE
    machine.emit(Kind.ZERO_GRAD, call.node, optimizer=optimizer, clears="grad", parameters=optimizer.sets or None)
    return NONE


def _add_group(machine: Machine, optimizer: Thing, call: Call) -> Value:
    """New parameters for an optimizer: what was replaced before is held again."""
    from fallline.reader.torch_api import parameter_sets

    added = parameter_sets(machine, call.arg(0, "param_group"))
    if added is None:
        optimizer.facts.pop("parameters", None)
    elif optimizer.sets:
        optimizer.facts["parameters"] = optimizer.sets | added
    for event in machine.events:
        if event.kind is Kind.REPLACE and event.fact("what") == "head":
            event.kind = Kind.GRAD_READ
            event.facts = {"what": "value"}
    return NONE


def _step(machine: Machine, optimizer: Thing, call: Call) -> Value:
    if not frameworks.stepping(machine, optimizer):
        return NONE
    closure = machine.settled(call.arg(0, "closure") or NONE)
    is_closure = isinstance(closure, Function | Partial)
    result: Value = NONE
    if is_closure:
        result = _closed(machine, closure, call)
    elif not (isinstance(closure, Const) and closure.value is None):
        machine.emit(Kind.OPAQUE, call.node, what="the closure")
    emit_step(machine, optimizer, call.node, "framework" if optimizer.facts.get("accelerator") else "direct", closure=is_closure or None)
    return result


def _closed(machine: Machine, closure: Value, call: Call) -> Value:
    from fallline.reader.calls import Call as Made
    from fallline.reader.calls import call_value

    machine.frames[-1].closing, before = True, machine.frames[-1].closing
    try:
        return call_value(machine, closure, Made(call.node, [], {}))
    finally:
        machine.frames[-1].closing = before


def emit_step(machine: Machine, optimizer: Thing, node: ast.AST, via: str, scaler: Thing | None = None, closure: bool | None = None) -> None:
    """The STEP of one optimizer."""
    machine.emit(
        Kind.STEP,
        node,
        optimizer=optimizer,
        scaler=scaler,
        via=via,
        closure=closure,
        boundary=machine.boundary(),
        parameters=optimizer.sets or None,
    )


def _scale(machine: Machine, scaler: Thing, call: Call) -> Value:
    value = machine.settled(call.arg(0, "outputs") or Unknown())
    if isinstance(value, Sequence):
        return Sequence([replace(v, scaler=scaler) if isinstance(v, Tensor) else v for v in value.items])
    tensor = value if isinstance(value, Tensor) else Tensor(None, divided=None)
    return replace(tensor, scaler=scaler)


def _unscale(machine: Machine, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(machine, call)
    if _enabled(machine, scaler):
        machine.emit(Kind.UNSCALE, call.node, optimizer=optimizer, scaler=scaler, parameters=optimizer.sets or None if optimizer else None)
    return NONE


def _optimizer_of(machine: Machine, call: Call) -> Thing | None:
    value = call.arg(0, "optimizer")
    if value is None:
        return None
    known = machine.settled(value)
    if isinstance(known, Unknown):
        known = machine.become(known, "optimizer")
    return known if isinstance(known, Thing) and known.kind == "optimizer" else None


def _enabled(machine: Machine, scaler: Thing) -> bool:
    return scaler.facts.get("enabled") is not False


def _scaler_step(machine: Machine, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(machine, call)
    if optimizer is None:
        machine.emit(Kind.OPAQUE, call.node, what="scaler.step")
        return NONE
    emit_step(machine, optimizer, call.node, "scaler" if _enabled(machine, scaler) else "direct", scaler if _enabled(machine, scaler) else None)
    return NONE


def _scaler_update(machine: Machine, scaler: Thing, call: Call) -> Value:
    if _enabled(machine, scaler):
        machine.emit(Kind.SCALER_UPDATE, call.node, scaler=scaler)
    return NONE


def _scheduler_step(machine: Machine, scheduler: Thing, call: Call) -> Value:
    of = scheduler.facts.get("optimizer")
    optimizer = machine.things.get(of) if isinstance(of, str) else None
    if scheduler.facts.get("accelerator") and not frameworks.stepping(machine, scheduler):
        return NONE
    tested = any(w in text for _, _, text in machine.tests for w in ("scale", "skip", "step_was_"))
    machine.emit(
        Kind.SCHEDULER_STEP,
        call.node,
        scheduler=scheduler,
        optimizer=optimizer,
        explicit=bool(call.values) or None,
        per="batch" if _in_batch(machine) else "epoch",
        checked=tested,
    )
    return NONE


def _in_batch(machine: Machine) -> bool:
    """The innermost loop around is one that trains batch by batch, not the epoch loop around it."""
    from fallline.reader.relevance import trains

    if "data" in machine.loops:
        return True
    if not machine.loop_nodes:
        return False
    module, loop = machine.loop_nodes[-1]
    inner = [n for n in ast.walk(loop) if isinstance(n, ast.For | ast.While) and n is not loop]
    return not trains(module, inner) and any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in {"backward", "manual_backward"}
        for n in ast.walk(loop)
    )


def _set_epoch(machine: Machine, sampler: Thing, call: Call) -> Value:
    loader = next((t for t in machine.things.values() if t.kind == "loader" and t.attrs.get("sampler") is sampler), None)
    machine.emit(Kind.SAMPLER_EPOCH, call.node, loader=loader, sampler=sampler.id)
    return NONE


# -- tensors -----------------------------------------------------------------------------------------------------


def backward(machine: Machine, found: Value, call: Call, normalised: str | None = None) -> None:
    """The backward of a loss, with all that is known about how the loss came to be."""
    loss = found if isinstance(found, Tensor) else Tensor(None, divided=None)
    forwards = [machine.events[i] for i in sorted(loss.forwards)]
    trained = [f for f in forwards if f.fact("grad")]
    wrapped = [f for f in trained if f.fact("wrapper") and not f.fact("bypass")]
    model = machine.things.get(trained[-1].model or "") if trained else None
    scaled = loss.scaler is not None and _enabled(machine, loss.scaler)
    in_no_sync = bool(machine.unsynced)
    keep = machine.settled(call.arg(None, "retain_graph") or Const(False))
    create = machine.settled(call.arg(None, "create_graph") or Const(False))
    if machine.anomaly is not None and machine.iteration:
        machine.emit(Kind.ANOMALY, machine.anomaly)
        machine.anomaly = None
    event = machine.emit(
        Kind.BACKWARD,
        call.node,
        model=model,
        scaler=loss.scaler if scaled else None,
        scaled=scaled if loss.graph is not None or loss.scaler else None,
        divided=loss.divided,
        divisor=loss.divisor,
        divided_by=loss.divided_by or None,
        normalised=normalised,
        reduction=loss.reduction,
        ragged=loss.ragged or None,
        autocast=machine.autocast[-1] if machine.autocast[-1] != "disabled" else "off",
        no_sync=in_no_sync if wrapped or in_no_sync else None,
        sync=(not any(f.fact("no_sync") for f in wrapped)) if wrapped else None,
        wrapper=wrapped[-1].fact("wrapper") if wrapped else None,
        retain_graph=bool(keep.value) if isinstance(keep, Const) and keep.value else None,
        create_graph=bool(create.value) if isinstance(create, Const) and create.value else None,
        half_parameters=any(t.facts.get("half") for t in machine.things.values() if t.id in {f.model for f in trained}) or None,
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
    for earlier in machine.events[:-1]:
        if earlier.kind is Kind.BACKWARD and earlier.facts.get("retain_graph") and not loss.forwards.isdisjoint(earlier.facts.get("_graph", ())):
            earlier.facts["second"] = True
    event.facts["_graph"] = loss.forwards


def sync(machine: Machine, tensor: Tensor, what: str, node: ast.AST) -> None:
    """The host waits for the device."""
    if machine.iteration and not machine.inside_model:
        uses_cuda = "cuda" in machine.module.source.text
        machine.emit(
            Kind.SYNC,
            node,
            what=what,
            per_parameter=bool(machine.loops and machine.loops[-1] == "params") or None,
            device="cuda" if uses_cuda else None,
            conditional=any(varying for _, varying, _ in machine.tests) or None,
        )


_DETACHED = frozenset({"detach", "detach_", "numpy", "tolist", "item", "argmax", "argmin", "eq", "ne", "gt", "lt", "ge", "le", "long", "int", "bool", "topk_indices"})
_SYNCS = {"item": "item", "cpu": "cpu", "tolist": "tolist", "numpy": "cpu"}


def _tensor(machine: Machine, tensor: Tensor, name: str, call: Call) -> Value:
    if name == "backward":
        backward(machine, tensor, call)
        return NONE
    if tensor.grad_of is not None:
        return _gradient(machine, tensor, name, call)
    if name in _SYNCS:
        sync(machine, tensor, _SYNCS[name], call.node)
        if name == "item":
            return Unknown()
        if name != "cpu":
            return Tensor(False, length=tensor.length)
    if name in _DETACHED:
        return replace(tensor, graph=False, kept=frozenset(), forwards=tensor.forwards if name == "detach" and False else frozenset(), sets=frozenset())
    if name in {"chunk", "split", "tensor_split", "unbind"}:
        return _pieces(machine, tensor, call)
    if name in {"requires_grad_"}:
        tensor.graph, tensor.leaf = True, True
        return tensor
    if name == "size" or name == "dim" or name == "numel":
        return Unknown(name)
    if name in {"float", "double"}:
        return replace(tensor, half=None)
    if name in {"half", "bfloat16"}:
        return replace(tensor, half="float16" if name == "half" else "bfloat16")
    return reduce(machine, tensor, name, call)


def reduce(machine: Machine, tensor: Tensor, name: str, call: Call) -> Tensor:
    """A function of a tensor, as far as how the loss reduces and scales goes."""
    from fallline.reader.evaluate import divided, merged

    result = tensor
    for value in map(machine.settled, call.values):
        if isinstance(value, Tensor) and value is not tensor and value.grad_of is None:
            result = merged(result, value)
    if name in {"mean", "nanmean"}:
        return replace(result, reduction="mean", scalar=True, divided=False if result.divided is None else result.divided)
    if name == "sum":
        return replace(result, reduction=result.reduction if result.reduction == "mean" else "sum", scalar=True, depth=len(machine.loops))
    if name in {"div", "div_", "true_divide"}:
        other = call.arg(0 if isinstance(call.node.func, ast.Attribute) else 1, "other")
        if other is not None and not isinstance(machine.settled(other), Tensor):
            return divided(machine, result, machine.settled(other), call.node)
    if name in {"detach"}:
        return replace(result, graph=False, forwards=frozenset(), kept=frozenset(), sets=frozenset())
    if not machine.recording:
        return replace(result, graph=False)
    return replace(result)


def _pieces(machine: Machine, tensor: Tensor, call: Call) -> Value:
    from fallline.reader.machine import count_of

    given = call.arg(0, "chunks", "split_size_or_sections", "split_size", "sections")
    count = count_of(machine, machine.settled(given)) if given is not None else None
    number = count if count is not None and 1 <= count <= 8 else 2
    return Sequence([replace(tensor) for _ in range(max(number, 2) if count != 1 else 1)], machine.iteration)


def _gradient(machine: Machine, grad: Tensor, name: str, call: Call) -> Value:
    """A method of `p.grad`."""
    assert grad.grad_of is not None
    sets = frozenset() if "?" in grad.grad_of else grad.grad_of
    if name in {"zero_", "fill_"}:
        machine.emit(Kind.ZERO_GRAD, call.node, clears="grad", parameters=sets or None)
        return NONE
    operations = {"div_": "div", "mul_": "mul", "add_": "noise", "copy_": "assign", "clamp_": "other", "sub_": "add", "data": "other"}
    if name == "clamp_":
        machine.emit(Kind.CLIP, call.node, how="value", parameters=sets or None)
        return NONE
    if name in operations:
        grads.write(machine, sets, operations[name], call.node)
        return grad
    if name in {"detach", "clone", "float", "to", "view", "reshape", "flatten", "data", "abs", "square", "pow"}:
        return grad
    if name in {"detach_", "requires_grad_"}:
        return grad
    grads.read(machine, sets, "norm" if "norm" in name else "value", call.node)
    return Tensor(False)


def _parameter(machine: Machine, parameter: Param, name: str, call: Call) -> Value:
    if name.endswith("_") and not name.startswith("_") and name not in {"requires_grad_", "register_hook"}:
        if any(isinstance(machine.settled(v), Tensor) for v in call.values):
            grads.used(machine, NONE, parameter.sets, call.node)
        return parameter
    if name in {"register_hook", "register_post_accumulate_grad_hook"}:
        machine.emit(Kind.OPAQUE, call.node, what=name)
        return NONE
    if name in {"numel", "size", "dim", "nelement"}:
        return Unknown(name)
    return Tensor(True, parameter.sets)


# -- containers --------------------------------------------------------------------------------------------------


def _sequence(machine: Machine, sequence: Sequence, name: str, call: Call) -> Value:
    if name in {"append", "add", "insert", "appendleft"}:
        value = machine.settled(call.args[-1]) if call.args else Unknown()
        if isinstance(value, Tensor):
            value = grads.keep(machine, sequence, value, "append", call.node)
        if len(sequence.items) < 64:
            sequence.items.append(value)
        return NONE
    if name == "extend" and call.args:
        value = machine.settled(call.args[0])
        if isinstance(value, Sequence):
            sequence.items += value.items[:64]
        elif isinstance(value, Params):
            sequence.items.append(value)
        return NONE
    if name == "pop":
        return sequence.items.pop() if sequence.items else Unknown()
    if name == "clear":
        sequence.items.clear()
        sequence.born = machine.iteration
        return NONE
    return Unknown()


def _mapping(machine: Machine, mapping: Mapping, name: str, call: Call) -> Value:
    if name == "items":
        return Sequence([Sequence([Const(k), v]) for k, v in mapping.items.items()])
    if name == "values":
        return Sequence(list(mapping.items.values()))
    if name == "keys":
        return Sequence([Const(k) for k in mapping.items])
    if name in {"get", "pop"} and call.args and isinstance(call.args[0], Const):
        found = mapping.items.get(call.args[0].value)
        return found if found is not None else call.args[1] if len(call.args) > 1 else Unknown()
    if name == "update" and call.args and isinstance(call.args[0], Mapping):
        mapping.items.update(call.args[0].items)
    return Unknown()


_METHODS: dict[tuple[str, str], Callable[[Machine, Thing, Call], Value]] = {
    ("model", "train"): _train,
    ("model", "eval"): _eval,
    ("model", "to"): _moved,
    ("model", "cuda"): _moved,
    ("model", "cpu"): _moved,
    ("model", "float"): _full,
    ("model", "double"): _self,
    ("model", "bfloat16"): _self,
    ("model", "half"): _half,
    ("model", "apply"): _self,
    ("model", "compile"): _self,
    ("model", "share_memory"): _self,
    ("model", "parameters"): _parameters,
    ("model", "named_parameters"): _named_parameters,
    ("model", "modules"): _modules,
    ("model", "named_modules"): _modules,
    ("model", "children"): _modules,
    ("model", "named_children"): _modules,
    ("model", "requires_grad_"): _requires_grad,
    ("model", "zero_grad"): _model_zero_grad,
    ("model", "no_sync"): _no_sync,
    ("model", "set_requires_gradient_sync"): _sync_flag,
    ("model", "clip_grad_norm_"): _model_clip,
    ("model", "forward"): lambda machine, thing, call: _forward(machine, thing, call),
    ("criterion", "to"): _self,
    ("criterion", "cuda"): _self,
    ("criterion", "forward"): lambda machine, thing, call: _criterion(machine, thing, call),
    ("criterion", "parameters"): _parameters,
    ("optimizer", "zero_grad"): _zero_grad,
    ("optimizer", "step"): _step,
    ("optimizer", "add_param_group"): _add_group,
    ("scaler", "scale"): _scale,
    ("scaler", "unscale_"): _unscale,
    ("scaler", "step"): _scaler_step,
    ("scaler", "update"): _scaler_update,
    ("scheduler", "step"): _scheduler_step,
    ("sampler", "set_epoch"): _set_epoch,
}

_ = (Bound, Context, ExitStack)

"""Models and losses: called, switched, moved, asked for their parameters."""

from __future__ import annotations

import ast

from fallline.events import Event, Kind
from fallline.location import Location
from fallline.reader.call import METHODS, Call
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts_here, called_names, trains
from fallline.reader.values import (
    NONE,
    Const,
    Context,
    External,
    Function,
    Mapping,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)

__all__ = ["call_thing", "shaped"]


def call_thing(machine: Machine, thing: Thing, call: Call) -> Value:
    """An object is called: a model's forward, a loss, an instance with `__call__`."""
    from fallline.reader.calls import call_function
    from fallline.reader.objects import find_method
    from fallline.reader.torch_api import of_arguments

    if thing.kind == "model":
        return _forward(machine, thing, call)
    if thing.kind == "criterion":
        return _criterion(machine, thing, call)
    if thing.cls is not None:
        method = find_method(*thing.cls, "__call__")
        if method is not None:
            return call_function(
                machine,
                Function(method[1], method[0], None, thing),
                call.args,
                call.kwargs,
                call.node,
            )
    if thing.kind == "engine":
        return _forward(machine, thing, call)
    return of_arguments(machine, call)


def _criterion(machine: Machine, thing: Thing, call: Call) -> Value:
    from fallline.reader.torch_api import compares_samples, of_arguments

    if thing.cls is not None:
        inside = _run_forward(machine, thing, call)
        if isinstance(inside, Tensor):
            return inside
    return replace(
        of_arguments(machine, call),
        reduction=thing.facts.get("reduction")
        or (None if thing.cls or "type" not in thing.facts else "mean"),
        ragged=bool(thing.facts.get("ragged")),
        in_batch=compares_samples(machine, call),
        divided=False,
        half=None,
        depth=len(machine.loops),
    )


def _forward(machine: Machine, model: Thing, call: Call) -> Value:
    from fallline.reader.torch_api import of_arguments

    given = of_arguments(machine, call)
    event: Event | None = None
    if not machine.inside_model:
        outer = model.facts.get("of") if model.facts.get("bypasses") else None
        identity = machine.things.get(outer, model) if isinstance(outer, str) else model
        event = machine.emit(
            Kind.FORWARD,
            _outside(machine, call.node),
            model=identity,
            training=model.facts.get("training"),
            # a frozen model builds no graph unless its input has one
            grad=machine.recording and (not model.facts.get("frozen") or given.graph is not False),
            autocast=machine.autocast[-1] if machine.autocast[-1] != "disabled" else "off",
            no_sync=(identity.id in machine.unsynced)
            if identity.facts.get("wrapper") or identity.id in machine.unsynced
            else None,
            wrapper=model.facts.get("wrapper")
            if not model.facts.get("bypasses")
            else model.facts.get("bypasses"),
            bypass=True if model.facts.get("bypasses") == "ddp" else None,
            repeated=_evaluates(machine) if model.facts.get("training") is False else None,
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
    return shaped(inside, result, whole=True) if inside is not None else result


def _evaluates(machine: Machine) -> bool:
    """Whether a loop is around that does not train: over the batches of an evaluation, over samples."""
    return "items" in machine.loops or any(
        not trains(module, [loop]) for module, loop in machine.loop_nodes
    )


def _outside(machine: Machine, node: ast.AST) -> Location:
    """Where a model is called from: for a part called in one of the model's own methods, where that method was called."""
    depth = 0
    for frame, function in zip(reversed(machine.frames), reversed(machine.calling), strict=False):
        if frame.me is None or frame.me.kind != "model" or acts_here([function]):
            break
        depth += 1
    return machine.callers[-depth] if 0 < depth <= len(machine.callers) else machine.place(node)


def shaped(inside: Value, result: Tensor, whole: bool = False) -> Value:
    """What forward returned, each tensor in it carrying this call's graph.

    Only the `whole` result of a model is surely a tensor with that graph; a part of it whose making was not seen
    may as well be a number.
    """
    unsure = result.graph if whole or not result.graph else None
    if isinstance(inside, Sequence):
        return Sequence([shaped(i, result) for i in inside.items], inside.born)
    if isinstance(inside, Mapping):
        return Mapping({k: shaped(v, result) for k, v in inside.items.items()}, inside.born)
    if isinstance(inside, Tensor):
        return replace(
            inside,
            graph=unsure if inside.graph is None else inside.graph,
            sets=inside.sets | result.sets,
            forwards=inside.forwards | result.forwards,
            kept=inside.kept | result.kept,
        )
    if isinstance(inside, Const):
        return inside
    if result.graph is False and not result.forwards:
        return inside
    return replace(result, graph=unsure)


_TELLING = frozenset(
    "cross_entropy mse_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits l1_loss smooth_l1_loss checkpoint "
    "autocast kl_div item criterion loss_fn loss_fct loss mean sum".split()
)


def _run_forward(machine: Machine, model: Thing, call: Call) -> Value | None:
    """Run a project model's own forward once a trace: what it returns does not change."""
    from fallline.reader.calls import call_function
    from fallline.reader.objects import find_method

    inner = model.attrs.get("module")
    if model.facts.get("wrapper") and isinstance(inner, Thing):
        model = inner  # a wrapper's forward is its module's
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
        function = Function(method[1], method[0], None, model)
        found = call_function(machine, function, call.args, call.kwargs, call.node, always=True)
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
    family = [
        model,
        *(
            t
            for t in machine.things.values()
            if t.kind == "model" and t.sets and t.sets == model.sets
        ),
    ]
    for member in family:
        if training is None:
            member.facts.pop("training", None)
        else:
            member.facts["training"] = training
        inner = member.attrs.get("module")
        if isinstance(inner, Thing) and training is not None:
            inner.facts["training"] = training
    if not machine.inside_model:
        machine.emit(
            Kind.MODE,
            call.node,
            model=model,
            mode=None if training is None else "train" if training else "eval",
            parameters=model.sets or None,
        )


def _moved(machine: Machine, model: Thing, call: Call) -> Value:
    """`model.to(device)`: itself; too late when DDP already holds it, unless it was there before."""
    wrapped = model.facts.get("wrapper") == "ddp"
    inner = machine.things.get(str(model.facts.get("of")), model) if wrapped else model
    if _names_device(machine, call):
        late = wrapped or model.facts.get("wrapped_by")
        if late and not inner.facts.get("moved") and not machine.iteration:
            machine.emit(Kind.REPLACE, call.node, model=model, what="moved", parameters=model.sets)
        inner.facts["moved"] = True
    return _half_if_asked(machine, model, call)


def _names_device(machine: Machine, call: Call) -> bool:
    """`.cuda()`, `.to(device)`: not `.to(torch.bfloat16)`, nor `.to(memory_format=...)`."""
    if not isinstance(call.node.func, ast.Attribute):
        return False
    if call.node.func.attr != "to":
        return True
    first = machine.settled(call.values[0]) if call.values else None
    dtype = isinstance(first, External) and first.name.startswith("torch.")
    return (first is not None and not dtype) or any(k.arg == "device" for k in call.node.keywords)


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
    part = Thing(
        "model", model.id + ".part", model.at, {**model.facts, "one_of_modules": True}, {}, None
    )
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
    machine.emit(
        Kind.ZERO_GRAD, call.node, model=model, clears="grad", parameters=model.sets or None
    )
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


METHODS |= {
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
}

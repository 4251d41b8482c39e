"""Models and losses: called, switched, moved, asked for their parameters."""

from __future__ import annotations

import ast
import re
from typing import Literal

from fallline.api import contexts
from fallline.api.arithmetic import compares_samples, of_arguments
from fallline.api.call import Call
from fallline.api.gradients import clip
from fallline.api.library import Method
from fallline.api.paper import Paper, orders
from fallline.api.values import (
    NONE,
    Const,
    External,
    Mapping,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
    truth_of,
)
from fallline.events import Forward, Mode, Replace, ZeroGrad
from fallline.syntax import Module
from fallline.syntax.age import volatile_works
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import methods_called, written
from fallline.syntax.once import once

__all__ = ["METHODS", "called", "computed_by", "set_mode", "shaped", "through"]


def called(paper: Paper, thing: Thing, call: Call) -> Value:
    """An object is called: a model's forward, a loss, an instance with `__call__`."""
    if thing.kind == "model":
        return _forward(paper, thing, call)
    if thing.kind == "criterion":
        return _criterion(paper, thing, call)
    result = paper.run_method(thing, "__call__", call)
    if result is not None:
        return result
    if thing.kind == "engine":
        return _forward(paper, thing, call)
    return of_arguments(paper, call)


def _criterion(paper: Paper, thing: Thing, call: Call) -> Value:
    if thing.cls is not None:
        inside = _run_forward(paper, thing, call)
        if isinstance(inside, Tensor):
            # what it computes is kept from its first call; the graph is that of this one
            given = of_arguments(paper, call)
            return replace(inside, forwards=given.forwards, kept=given.kept)
    known = thing.facts.get("reduction") or (None if thing.cls is not None else "mean")
    return replace(
        of_arguments(paper, call),
        reduction=known,
        presumed=averages(thing) if "type" not in thing.facts and thing.cls is None else "",
        ragged=bool(thing.facts.get("ragged")),
        in_batch=compares_samples(paper, call),
        divided=False,
        half=None,
        depth=len(paper.loops.kinds),
    )


def averages(thing: Thing) -> str:
    """What is presumed of a loss whose making is not in view."""
    return f"`{thing.facts.get('name') or 'the loss'}` averages over the batch, as losses do by default"


def _forward(paper: Paper, model: Thing, call: Call) -> Value:
    given = of_arguments(paper, call)
    event = _passed(paper, model, call, _records(paper, model, given, call.node))
    inside = _run_forward(paper, model, call)
    graph = paper.around.recording and model.facts.get("frozen") is not True
    half = (
        paper.around.autocast[-1] if paper.around.autocast[-1] in {"float16", "bfloat16"} else None
    )
    result = Tensor(
        True if graph else bool(given.graph) if paper.around.recording else False,
        (model.sets if graph else frozenset()) | given.sets,
        orders(event) | given.forwards,
        given.kept,
        half=half,
        length=given.length,
        raw=True,
    )
    # what a frozen model, or one without weights, computes has a graph only where its input has one
    recording = paper.around.recording and (graph or given.graph is not False)
    return shaped(inside, result, recording, whole=True) if inside is not None else result


def _passed(paper: Paper, model: Thing, call: Call, records: bool | None) -> Forward | None:
    """One pass through a model, unless it is part of another one's."""
    event: Forward | None = None
    if not paper.around.inside_model:
        outer = model.facts.get("of") if model.facts.get("bypasses") else None
        identity = paper.things.get(outer, model) if isinstance(outer, str) else model
        event = Forward(
            paper.outside(call.node),
            model=identity.id,
            training=model.facts.get("training"),
            grad=records,
            autocast=paper.around.autocast[-1]
            if paper.around.autocast[-1] != "disabled"
            else "off",
            no_sync=(identity.id in paper.around.unsynced)
            if identity.facts.get("wrapper") or identity.id in paper.around.unsynced
            else None,
            wrapper=model.facts.get("wrapper")
            if not model.facts.get("bypasses")
            else model.facts.get("bypasses"),
            bypass=True if model.facts.get("bypasses") == "ddp" else None,
            repeated=paper.evaluates() if model.facts.get("training") is False else None,
            fed=paper.loops.fed > 0 if model.facts.get("training") is False else None,
            frozen=True if paper.around.recording and model.facts.get("frozen") else None,
            parameters=model.sets or None,
        )
        if _clears_itself(model):
            paper.emit(ZeroGrad(paper.outside(call.node)))
        paper.emit(event)
    return event


def through(paper: Paper, model: Thing, name: str, call: Call) -> Value:
    """`model.encode(x)`, `model.compute_loss(batch)`: a pass through the model by another door than `forward`.

    What it computes is what its own code shows, of the parts that it runs.
    """
    given = of_arguments(paper, call)
    event = _passed(paper, model, call, _records(paper, model, given, call.node))
    paper.around.inside_model += 1
    saved = paper.around.autocast
    try:
        inside = paper.run_method(model, name, call)
    finally:
        paper.around.inside_model -= 1
        paper.around.autocast = saved
    recording = paper.around.recording and (
        not model.facts.get("frozen") or given.graph is not False
    )
    result = Tensor(
        None if recording else False,
        frozenset() if _has_sets(inside) else model.sets | given.sets,
        orders(event) | given.forwards,
        given.kept,
        divided=None,
    )
    return shaped(inside, result, recording) if inside is not None else result


def _has_sets(value: Value | None) -> bool:
    """Whether it is seen which parameters a result depends on."""
    match value:
        case Tensor(sets=sets):
            return bool(sets)
        case Sequence(items) if not any(item is value for item in items):
            return any(isinstance(item, Tensor) and item.sets for item in items)
        case Mapping(named):
            return any(isinstance(item, Tensor) and item.sets for item in named.values())
    return False


def computed_by(paper: Paper, model: Thing, call: Call, result: Value) -> Value:
    """A pass by a method that is not in view: whether it records is not known where autograd is on."""
    event = _passed(paper, model, call, None if paper.around.recording else False)
    graph = None if paper.around.recording else False
    given = of_arguments(paper, call)  # `model.module.loss((logits, features), y)`
    made = result if isinstance(result, Tensor) else Tensor(graph, divided=None)
    return replace(
        made,
        graph=graph,
        sets=made.sets | given.sets | model.sets,
        forwards=made.forwards | given.forwards | orders(event),
    )


def _clears_itself(model: Thing) -> bool:
    """Its forward begins with `self.zero_grad()`."""
    method = find_method(*model.cls, "forward") if model.cls is not None else None
    return method is not None and _clears(*method)


@once
def _clears(module: Module, method: ast.AST) -> bool:
    return "zero_grad" in methods_called(method)


# Forces are gradients of an energy, whatever computes them.
_ASKS = re.compile(r"\.requires_grad_\((True)?\)|\.requires_grad\s*=\s*True|\benable_grad\(")


@once
def _asks_for_gradients(module: Module, at: ast.AST) -> bool:
    """The function around a pass, or the `with` of a script, turns gradients on by hand: for an input, or inside what is evaluated without them."""
    around = module.function(at) or module.enclosing(at, ast.With)
    return around is not None and _ASKS.search(module.segment(around)) is not None


def _records(paper: Paper, model: Thing, given: Tensor, at: ast.AST) -> bool | None:
    """Whether a graph is built. A frozen model builds none unless its input has one."""
    if model.facts.get("training") is False and (
        paper.around.unsure or volatile_works(paper.module) or _asks_for_gradients(paper.module, at)
    ):
        return None
    return paper.around.recording and (not model.facts.get("frozen") or given.graph is not False)


def shaped(inside: Value, result: Tensor, recording: bool, whole: bool = False) -> Value:
    """What forward returned, each tensor in it carrying this call's graph; none where autograd does not record.

    Only the `whole` result of a model is surely a tensor with that graph; a part of it whose making was not seen
    may as well be a number.
    """
    return _shaped(inside, result, recording, whole, {})


def _shaped(
    inside: Value, result: Tensor, recording: bool, whole: bool, known: dict[int, Value]
) -> Value:
    """`known` are the lists and dictionaries that were gone into: one may be held many times."""
    unsure = result.graph if whole or not result.graph else None
    match inside:
        case Sequence() | Mapping() if id(inside) in known:
            return known[id(inside)]
        case Sequence(items, born):
            known[id(inside)] = listed = Sequence([], born)
            listed.items = [_shaped(item, result, recording, False, known) for item in items]
            return listed
        case Mapping(named, born):
            known[id(inside)] = mapped = Mapping({}, born)
            mapped.items = {
                k: _shaped(v, result, recording, False, known) for k, v in named.items()
            }
            return mapped
        case Tensor():
            graph = unsure if inside.graph is None else inside.graph
            return replace(
                inside,
                graph=graph if recording else False,
                sets=inside.sets | result.sets,
                forwards=inside.forwards | result.forwards,
                kept=inside.kept | result.kept,
            )
        case Thing(kind="object") if inside.facts.get("record"):
            fields = {
                k: _shaped(v, result, recording, False, known) for k, v in inside.attrs.items()
            }
            return Thing(
                "object", inside.id, inside.at, inside.facts, fields, inside.cls, inside.born
            )
        case Const():
            return inside
    if result.graph is False and not result.forwards:
        return inside
    return replace(result, graph=unsure if recording else False)


_TELLING = frozenset(
    "cross_entropy mse_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits l1_loss smooth_l1_loss checkpoint "
    "autocast kl_div item criterion loss_fn loss_fct loss mean sum".split()
)


def _run_forward(paper: Paper, model: Thing, call: Call) -> Value | None:
    """Run a project model's own forward once a trace for each way to call it: what it returns does not change."""
    inner = model.attrs.get("module")
    if model.facts.get("wrapper") and isinstance(inner, Thing):
        model = inner  # a wrapper's forward is its module's
    if model.cls is None:
        return None
    known = _returns(paper, model, call)
    if known in model.attrs:
        return model.attrs[known]
    model.attrs[known] = Tensor(None, divided=None)  # a forward that calls itself
    paper.around.inside_model += 1
    saved = paper.around.autocast
    try:
        found = paper.run_method(model, "forward", call, calls=_TELLING)
    finally:
        paper.around.inside_model -= 1
        paper.around.autocast = saved
    if found is None:
        del model.attrs[known]
    else:
        model.attrs[known] = found
    return found


_MOST_FORMS = 4  # ways to call one model that are told apart


def _returns(paper: Paper, model: Thing, call: Call) -> str:
    """What a model's forward returned for a call of this form is kept under: `model(x, y, reduction="none")` is another."""
    given = [*call.args, *call.kwargs.values()]
    form = ", ".join(repr(v.value)[:20] if isinstance(v, Const) else "" for v in given)
    names = f"{len(call.args)} {' '.join(call.kwargs)}"
    graph = of_arguments(paper, call).graph if model.kind == "criterion" else ""
    key = f"returns {names} ({form}) {graph}"
    forms = [name for name in model.attrs if name.startswith("returns ")]
    return key if key in model.attrs or len(forms) < _MOST_FORMS else forms[-1]


def _train(paper: Paper, model: Thing, call: Call) -> Value:
    mode = paper.settled(call.arg(0, "mode") or Const(True))
    set_mode(paper, model, truth_of(mode), call)
    return model


def _eval(paper: Paper, model: Thing, call: Call) -> Value:
    set_mode(paper, model, False, call)
    return model


def set_mode(paper: Paper, model: Thing, training: bool | None, call: Call) -> None:
    family = [
        model,
        *(
            t
            for t in paper.things.values()
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
    if not paper.around.inside_model:
        mode: Literal["train", "eval"] | None = "train" if training else "eval"
        paper.emit(
            Mode(
                paper.place(call.node),
                model=model.id,
                mode=None if training is None else mode,
                chosen=_is_chosen(paper, call.node) or None,
                parameters=model.sets or None,
            )
        )


def _is_chosen(paper: Paper, node: ast.AST) -> bool:
    """`if head_only: model.eval()` and `else: model.train()`: an option says in which mode to train."""
    match node, paper.module.enclosing(node, ast.If):
        case ast.Call(ast.Attribute(of, "eval")), ast.If(body=body, orelse=orelse):
            other = orelse if any(node in ast.walk(s) for s in body) else body
            return f"{written(of)}.train()" in {written(s) for s in other}
    return False


def _moved(paper: Paper, model: Thing, call: Call) -> Value:
    """`model.to(device)`: itself; too late when DDP already holds it, unless it was there before."""
    wrapped = model.facts.get("wrapper") == "ddp"
    inner = paper.things.get(str(model.facts.get("of")), model) if wrapped else model
    if _names_device(paper, call):
        late = wrapped or model.facts.get("wrapped_by")
        if late and not inner.facts.get("moved") and not paper.loops.iteration:
            at, sets = paper.place(call.node), model.sets
            paper.emit(Replace(at, model=model.id, what="moved", parameters=sets))
        inner.facts["moved"] = True
    return _half_if_asked(paper, model, call)


def _names_device(paper: Paper, call: Call) -> bool:
    """`.cuda()`, `.to(device)`: not `.to(torch.bfloat16)`, nor `.to(memory_format=...)`."""
    if not isinstance(call.node.func, ast.Attribute):
        return False
    if call.node.func.attr != "to":
        return True
    first = paper.settled(call.values[0]) if call.values else None
    dtype = isinstance(first, External) and first.name.startswith("torch.")
    return (first is not None and not dtype) or any(k.arg == "device" for k in call.node.keywords)


def _half_if_asked(paper: Paper, model: Thing, call: Call) -> Value:
    for value in map(paper.settled, call.values):
        if isinstance(value, External) and value.name in {"torch.float16", "torch.half"}:
            model.facts["half"] = True
    return model


def _full(paper: Paper, model: Thing, call: Call) -> Value:
    model.facts["half"] = None
    return model


def _half(paper: Paper, model: Thing, call: Call) -> Value:
    model.facts["half"] = True
    return model


def _parameters(paper: Paper, model: Thing, call: Call) -> Value:
    return Params(model.sets)


def _named_parameters(paper: Paper, model: Thing, call: Call) -> Value:
    return Params(model.sets, named=True)


def _modules(paper: Paper, model: Thing, call: Call) -> Value:
    part = Thing("model", model.id + ".part", model.at, dict(model.facts), {}, None)
    named = isinstance(call.node.func, ast.Attribute) and call.node.func.attr.startswith("named")
    item: Value = Sequence([Unknown("name"), part]) if named else part
    return Thing("iterator", "modules", None, {"wrap": "modules", "of": [Sequence([item])]})


def _self(paper: Paper, thing: Thing, call: Call) -> Value:
    return thing


def _requires_grad(paper: Paper, model: Thing, call: Call) -> Value:
    on = paper.settled(call.arg(0, "requires_grad") or Const(True))
    if isinstance(on, Const):
        model.facts["frozen"] = not on.value
    return model


def _model_zero_grad(paper: Paper, model: Thing, call: Call) -> Value:
    at, sets = paper.place(call.node), model.sets or None
    paper.emit(ZeroGrad(at, model=model.id, parameters=sets))
    return NONE


def _no_sync(paper: Paper, model: Thing, call: Call) -> Value:
    if "strength" in model.facts or not model.facts.get("wrapper"):
        model.facts["wrapper"] = "ddp"  # only DDP (and FSDP) has no_sync
    return contexts.no_sync(model)


def _sync_flag(paper: Paper, model: Thing, call: Call) -> Value:
    """FSDP2: set_requires_gradient_sync(flag)."""
    flag = paper.settled(call.arg(0, "requires_gradient_sync") or Const(True))
    model.facts["wrapper"] = "fsdp2"
    paper.around.unsynced = [m for m in paper.around.unsynced if m != model.id] + (
        [model.id] if truth_of(flag) is False else []
    )
    return NONE


def _model_clip(paper: Paper, model: Thing, call: Call) -> Value:
    return clip(paper, call, "norm", model, call.arg(0, "max_norm"), local_shards=False)


METHODS: dict[tuple[str, str], Method] = {
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
    ("model", "forward"): _forward,
    ("criterion", "to"): _self,
    ("criterion", "cuda"): _self,
    ("criterion", "forward"): _criterion,
    ("criterion", "parameters"): _parameters,
}

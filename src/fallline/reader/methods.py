"""Method calls: of training objects and tensors as their library says, of the unknown by what only a training object has."""

from __future__ import annotations

import ast
import re

from fallline import api
from fallline.api import containers, tensors
from fallline.api.arithmetic import pieces
from fallline.api.call import Call
from fallline.api.gradients import backward, into, taken
from fallline.api.torch.model import computed_by
from fallline.api.torch.optimizer import emit_step
from fallline.api.values import (
    NONE,
    Const,
    Context,
    Function,
    Mapping,
    Param,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
    replace,
)
from fallline.events import Deed, Opaque, SamplerEpoch
from fallline.flow.plain_numbers import gives_numbers
from fallline.reader.machine import Machine
from fallline.reader.opaque import computed, derived
from fallline.reader.unseen import unseen_loss

__all__ = ["call_method", "call_unknown"]

_ACTS = re.compile(r"backward|step|update|clip|zero|scale_|reduce|sync")


# What a method of an optimizer or a scaler could do: it has no data to go over.
_TO_GRADIENTS: frozenset[Deed] = frozenset({"backward", "clear", "step", "divide"})
_ADDS = frozenset({"add_", "index_add_", "scatter_add_"})


def call_method(machine: Machine, found: Value, name: str, call: Call) -> Value:
    """`found.name(...)` of something that is not a class of the project."""
    value = machine.settled(found)
    if isinstance(value, Thing):
        handler = api.method(value.kind, name)
        if handler is not None:
            return handler(machine, value, call)
        if name == "set_epoch":
            return _some_sampler(machine, call)
        handler = api.inherited(value.kind, name)
        if handler is not None:
            return handler(machine, value, call)
        special = _special(machine, value, name, call)
        if special is not None:
            return special
        if value.kind == "iterator":
            return value
        if value.kind in {"optimizer", "scaler"} and _ACTS.search(name):
            # `optimizer.backward(loss)`, `optimizer.clip_master_grads(1)`: not torch's own class, and it does more than that one
            what = f"{value.kind}.{name}"
            machine.emit(Opaque(machine.place(call.node), what=what, could=_TO_GRADIENTS))
        return _computed_by(machine, value, name, call) if value.kind == "model" else Unknown()
    if isinstance(value, Tensor):
        if gives_numbers(machine.module, name):
            return Unknown()  # an output of the project's own class
        return tensors.tensor(machine, value, name, call)
    if name == "backward" and not call.values:
        # whatever it is on paper, only a loss is called so
        backward(machine, unseen_loss(machine, call), call)
        return NONE
    if isinstance(value, Param):
        return tensors.parameter(machine, value, name, call)
    if isinstance(value, Params):
        return value
    if isinstance(value, Sequence):
        return containers.sequence(machine, value, name, call)
    if isinstance(value, Mapping):
        return containers.mapping(machine, value, name, call)
    if isinstance(value, Function) and name in {"backward", "apply"}:
        return derived(call)
    if isinstance(value, Const) and isinstance(value.value, str):
        return Unknown("text")
    if isinstance(value, Context) and name == "__enter__":
        return NONE
    return derived(call)


# By its name such a method of a model computes something with its weights, though its code is not in view.
_COMPUTES = re.compile(
    r"^_?(forward|encode|decode|embed|sample|generate|predict|infer|translate|score|nll|elbo|act|log_prob|evaluate_actions|reconstruct|extract_feat)"
    r"|(^|_)(loss|logits|features|embeddings?|log_?probs?)$"
)


def _computed_by(machine: Machine, model: Thing, name: str, call: Call) -> Value:
    """`model.score(hidden)`, `model.loss(x, y)`: out of tensors, by a method that is not in view: perhaps with its graph."""
    result = computed(machine, name, call, (model,))
    if call.values and _COMPUTES.search(name):
        return computed_by(machine, model, call, result)
    if not isinstance(result, Tensor):
        return result
    if not machine.around.recording:
        return replace(result, graph=False)
    return replace(result, graph=None, sets=result.sets | model.sets)


def _special(machine: Machine, thing: Thing, name: str, call: Call) -> Value | None:
    """A method of a framework's object."""
    handler = api.any_method(thing.kind)
    return handler(machine, thing, name, call) if handler is not None else None


def call_unknown(machine: Machine, value: Unknown, name: str, call: Call) -> Value | None:
    """A method of something unknown that only a training object has, or that its name suggests."""
    if (
        name == "backward"
        and kind_by_name(value.hint) not in {"accelerator", "fabric"}
        and not call.values
    ):
        backward(machine, unseen_loss(machine, call), call)
        return NONE
    kind = kind_by_name(value.hint)
    if name == "zero_grad" and (kind is None or api.method(kind, name) is None):
        if value.parts:  # something of which more is known than that it clears
            could: frozenset[Deed] = frozenset({"clear"})
            machine.emit(Opaque(machine.place(call.node), what=f"{value.hint}.{name}", could=could))
            return NONE
        kind = "model"  # whatever `val_fn` sounds like
    if name in {"unscale_", "get_scale"}:
        kind = "scaler"
    if kind is not None and kind != "loader" and api.method(kind, name) is not None:
        return call_method(machine, machine.become(value, kind), name, call)
    if kind == "model" and call.values and _COMPUTES.search(name):
        return call_method(machine, machine.become(value, kind), name, call)
    if name == "set_epoch":
        return _some_sampler(machine, call)
    if kind in {"accelerator", "fabric"}:
        return _special(machine, machine.become(value, kind), name, call)
    if name == "backward" and call.args:
        _backward_by(machine, f"{value.hint}.backward", call)
        return NONE
    if name == "optimizer_step":
        _step_by(machine, call)
    if name in {"parameters", "named_parameters"}:
        return call_method(machine, machine.become(value, "model"), name, call)
    if name == "requires_grad_" and not value.hint and call.args:
        # made(...).train().requires_grad_(False): whatever made it, a frozen model is what people treat so
        return call_method(machine, machine.become(value, "model"), name, call)
    if name in {"train", "eval"} and not value.hint and not call.values:
        return value
    if name in {"chunk", "split", "unbind", "tensor_split"}:
        return pieces(machine, Tensor(False), call)
    if name in {"to", "cuda", "float", "half", "cpu", "detach", "clone"}:
        return value
    if name in {"item"}:
        return Unknown()
    if name in tensors.TAKES_IN and len(call.args) > tensors.TAKES_IN[name]:
        given = machine.settled(call.args[tensors.TAKES_IN[name]])
        taken(machine, given, call.node)
        if name in _ADDS and not _new_here(machine, call):
            _added(machine, given, call)
            return value
    return None


def _backward_by(machine: Machine, what: str, call: Call) -> None:
    """`engine.backward(loss)`, `strategy.backward(loss, model)`: that of the loss, and whatever else belongs to it there."""
    loss = machine.settled(call.args[0])
    if isinstance(loss, Tensor) and loss.graph is not False:
        before, machine.around.scales = machine.around.scales, True
        backward(machine, replace(loss, divided=None), call, "perhaps")
        machine.around.scales = before
    machine.emit(Opaque(machine.place(call.node), what=what))


def _step_by(machine: Machine, call: Call) -> None:
    """`strategy.optimizer_step(optimizer, ...)`: a step; what else it does is left open by the opaque call it is."""
    held = [machine.as_kind(value, "optimizer") for value in call.values]
    mine = [optimizer for optimizer in held if optimizer is not None]
    if len(mine) == 1:
        emit_step(machine, mine[0], call.node, "framework")


def _new_here(machine: Machine, call: Call) -> bool:
    """Whether what a method is called on got its name in this iteration."""
    match call.node.func:
        case ast.Attribute(ast.Name(name)):
            return machine.frame.fresh.get(name) == machine.loops.iteration
    return False


def _added(machine: Machine, value: Value, call: Call) -> None:
    """`stats.average("loss").add_(loss)`: what is kept out of sight takes the graph of a loss into its own."""
    if isinstance(value, Tensor):
        into(machine, Tensor(False, born=0), value, "add", call.node)


def _some_sampler(machine: Machine, call: Call) -> Value:
    """`data.set_epoch(epoch)`: a wrapper of a loader or a dataset tells its sampler."""
    machine.emit(SamplerEpoch(machine.place(call.node)))
    return NONE

"""Methods and attributes of tensors, of their gradients and of parameters."""

from __future__ import annotations

import ast
import re

from fallline.api import gradients
from fallline.api.arithmetic import pieces, reduce
from fallline.api.call import Call
from fallline.api.gradients import Op, backward, sync
from fallline.api.paper import Paper
from fallline.api.values import (
    NONE,
    Bound,
    Param,
    Tensor,
    Unknown,
    Value,
    replace,
)
from fallline.events import Clip, Opaque, ZeroGrad

__all__ = ["attribute", "parameter", "tensor"]


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

# Methods that take another tensor into this one, and where they are given it.
TAKES_IN = {"add_": 0, "copy_": 0, "index_add_": 2, "scatter_add_": 2, "index_copy_": 2}


def tensor(paper: Paper, value: Tensor, name: str, call: Call) -> Value:
    """A method of a tensor."""
    if name == "backward":
        backward(paper, value, call)
        return NONE
    if value.grad_of is not None:
        return _gradient(paper, value, name, call)
    if name in _SYNCS:
        sync(paper, value, _SYNCS[name], call.node)
        if name == "item":
            return Unknown()
        if name != "cpu":
            return Tensor(False, length=value.length, host=True)
        return replace(value, host=True)
    if name in _DETACHED:
        return replace(value, graph=False, kept=frozenset(), forwards=frozenset(), sets=frozenset())
    if name in {"chunk", "split", "tensor_split", "unbind"}:
        return pieces(paper, value, call)
    if name in {"requires_grad_"}:
        value.graph, value.leaf = True, True
        return value
    if name in {"size", "dim", "numel"} or _ASKS.match(name):
        return Unknown(name)
    if name in TAKES_IN and len(call.args) > TAKES_IN[name]:
        added = paper.settled(call.args[TAKES_IN[name]])
        if isinstance(added, Tensor):
            gradients.into(paper, value, added, "add", call.node)
    if name in {"float", "double"}:
        return replace(value, half=None)
    if name in {"half", "bfloat16"}:
        return replace(value, half="float16" if name == "half" else "bfloat16")
    return reduce(paper, value, name, call)


def attribute(paper: Paper, value: Tensor, name: str, node: ast.AST) -> Value:
    """`tensor.name`, where it is not called."""
    if name == "grad":
        if value.leaf or not value.forwards:
            gradients.read(paper, frozenset(), "input", node)
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


def _gradient(paper: Paper, grad: Tensor, name: str, call: Call) -> Value:
    """A method of `p.grad`."""
    assert grad.grad_of is not None
    sets = frozenset() if "?" in grad.grad_of else grad.grad_of
    if name in {"zero_", "fill_"}:
        paper.emit(ZeroGrad(paper.place(call.node), parameters=sets or None))
        return NONE
    operations: dict[str, Op] = {
        "div_": "div",
        "mul_": "mul",
        "add_": "noise",
        "copy_": "assign",
        "clamp_": "other",
        "sub_": "add",
        "data": "other",
    }
    if name == "clamp_":
        paper.emit(Clip(paper.place(call.node), how="value", parameters=sets or None))
        return NONE
    if name in operations:
        gradients.write(paper, sets, operations[name], call.node)
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
    if name not in gradients.TESTS:
        gradients.read(paper, sets, "norm" if "norm" in name else "value", call.node)
    return Tensor(False)


def parameter(paper: Paper, value: Param, name: str, call: Call) -> Value:
    """A method of a parameter."""
    if (
        name.endswith("_")
        and not name.startswith("_")
        and name not in {"requires_grad_", "register_hook"}
    ):
        if any(isinstance(paper.settled(v), Tensor) for v in call.values):
            gradients.used(paper, value.sets, call.node)
        return value
    if name in {"register_hook", "register_post_accumulate_grad_hook"}:
        paper.emit(Opaque(paper.place(call.node), what=name))
        return NONE
    if name in {"numel", "size", "dim", "nelement"}:
        return Unknown(name)
    return Tensor(True, value.sets)

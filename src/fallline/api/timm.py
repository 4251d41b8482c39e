"""timm: its optimizers and clips, and `loss_scaler(loss, optimizer, clip_grad=...)`: backward, unscale, clip, step, update.

Its training script is the base of many others, with copies of the class; what is called as a scaler is taken for one.
"""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.gradients import backward, clip, parameter_sets
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.torch.make import scaler
from fallline.api.torch.optimizer import METHODS
from fallline.api.values import NONE, Const, Thing, Unknown, Value, truth_of

__all__ = ["LIBRARY", "update_by_scaler"]


def update_by_scaler(paper: Paper, by: Thing, call: Call) -> Value:
    """What `NativeScaler.__call__` does with a loss and an optimizer."""
    scaled = METHODS["scaler", "scale"](paper, by, call)
    backward(paper, scaled, call)
    wanted = call.arg(None, "need_update", "update_grad")
    if wanted is not None and truth_of(paper.settled(wanted)) is False:
        return NONE
    of = Call(call.node, call.args[1:2], {k: v for k, v in call.kwargs.items() if k == "optimizer"})
    limit = paper.settled(call.arg(2, "clip_grad") or NONE)
    if not (isinstance(limit, Const) and limit.value is None):
        METHODS["scaler", "unscale_"](paper, by, of)
        clip(paper, call, "norm", call.arg(4, "parameters") or Unknown(), limit)
    METHODS["scaler", "step"](paper, by, of)
    return METHODS["scaler", "update"](paper, by, of)


def _clip(paper: Paper, call: Call) -> Value:
    """`dispatch_clip_grad(parameters, value, mode)`."""
    return clip(paper, call, "norm", call.arg(0, "parameters"), call.arg(1, "value"))


def _optimizer(paper: Paper, call: Call, model: Value | None) -> Value:
    made = paper.make("optimizer", call.node)
    made.facts["parameters"] = parameter_sets(paper, model)
    return made


def _of_the_model(paper: Paper, call: Call) -> Value:
    """`create_optimizer_v2(model, ...)`."""
    return _optimizer(paper, call, call.arg(0, "model_or_params"))


def _of_the_options(paper: Paper, call: Call) -> Value:
    """`create_optimizer(args, model)`."""
    return _optimizer(paper, call, call.arg(1, "model"))


def _look_ahead(paper: Paper, optimizer: Thing, call: Call) -> Value:
    """`optimizer.sync_lookahead()`: the weights move to their average; gradients stay as they are."""
    return NONE


LIBRARY = Library(
    functions={
        "timm.utils.NativeScaler": scaler,
        "timm.utils.cuda.NativeScaler": scaler,
        "timm.utils.dispatch_clip_grad": _clip,
        "timm.optim.create_optimizer": _of_the_options,
        "timm.optim.create_optimizer_v2": _of_the_model,
        "timm.optim.optim_factory.create_optimizer": _of_the_options,
        "timm.optim.optim_factory.create_optimizer_v2": _of_the_model,
    },
    methods={("optimizer", "sync_lookahead"): _look_ahead},
)

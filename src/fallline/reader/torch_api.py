"""What torch's (and Python's) functions and constructors do, by dotted name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fallline.events import Kind
from fallline.reader import builtin
from fallline.reader.builders import (
    dataset,
    enabled_of,
    layer,
    loader,
    optimizer,
    pads,
    parameter_sets,
    reduction_of,
    sampler,
    scaler,
    scheduler,
    wrapped,
)
from fallline.reader.call import Call
from fallline.reader.evaluate import merged
from fallline.reader.machine import Machine
from fallline.reader.values import (
    NONE,
    Const,
    Context,
    External,
    Function,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)

__all__ = ["call", "clip", "of_arguments"]

_LOSSES = re.compile(
    r"torch\.nn\.functional\.(\w*(loss|entropy|divergence|div|nll)\w*|ctc_loss|kl_div)$"
)
_LAYERS = re.compile(r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*$")
_SCHEDULERS = re.compile(
    r"(?i)lr_scheduler\.\w+$|get_\w*schedule\w*$|get_scheduler$|\w+LR$|\w*Scheduler$|\w*WarmRestarts$"
)
_OPTIMIZERS = re.compile(
    r"(torch\.optim\.(?!lr_scheduler)[A-Z]\w*$)|((torch_optimizer|bitsandbytes\.optim|apex\.optimizers|transformers(\.optimization)?|timm\.optim\w*|adabelief_pytorch|lion_pytorch|deepspeed\.ops\.\w+|prodigyopt|dadaptation|schedulefree)\.\w*(Adam|SGD|Lion|Adafactor|Lamb|LAMB|Prodigy|AdamW)\w*$)"
)
_MADE = re.compile(
    r"torch\.(randn|rand|zeros|ones|randint|arange|linspace|full|empty|randperm|tensor|eye)$"
)
_SAME_TENSOR = frozenset(
    {"torch.nan_to_num", "torch.squeeze", "torch.unsqueeze", "torch.clone", "torch.abs"}
)


def call(machine: Machine, name: str, call: Call) -> Value | None:
    """The value of a call of an external function; None when it is not one we know."""
    effect = _EFFECTS.get(name)
    if effect is not None:
        return effect(machine, call)
    if not name.startswith("torch."):
        known = builtin.call(machine, name, call)
        if known is not None:
            return known
    last = name.rpartition(".")[2]
    for build in _builders_of(name):
        if build is not scheduler or any(
            isinstance(machine.settled(v), Thing) for v in call.values
        ):
            return build(machine, call, last)
    if name.startswith("torch.") and last in _BY_LAST:
        return _BY_LAST[last](machine, call)
    if name.startswith("torch.nn.init."):
        return NONE
    if name.startswith(("torch.", "numpy.", "math.")):
        return tensor_function(machine, call, last, foreign=not name.startswith("torch."))
    return None


@lru_cache(8192)
def _builders_of(name: str) -> tuple[Callable[[Machine, Call, str], Value], ...]:
    """What a torch name may make, first choice first. Programs use few names, again and again."""
    return tuple(build for pattern, build in _BUILDERS if pattern.search(name))


def functional_loss(machine: Machine, call: Call, name: str) -> Tensor:
    result = of_arguments(machine, call)
    return replace(
        result,
        reduction=reduction_of(machine, call),
        ragged=pads(machine, call),
        in_batch=compares_samples(machine, call),
        divided=False,
        half=None,
        depth=len(machine.loops),
    )


def compares_samples(machine: Machine, call: Call) -> bool:
    """The targets are 0, 1, 2, ...: every sample is told from the others of its batch (contrastive losses)."""
    target = machine.settled(call.arg(1, "target") or NONE)
    return isinstance(target, Tensor) and target.numbered


def tensor_function(machine: Machine, call: Call, name: str, foreign: bool = False) -> Value:
    """Any other torch function: its result depends on its tensors."""
    from fallline.reader.tensors import reduce

    tensors = [v for v in map(machine.settled, call.values) if isinstance(v, Tensor)]
    nested = [v for v in map(machine.settled, call.values) if isinstance(v, Sequence)]
    for inner in nested:
        tensors += [v for v in map(machine.settled, inner.items) if isinstance(v, Tensor)]
    if not tensors or name in {"numel", "is_tensor", "is_floating_point"}:
        return Unknown()  # plain Python values, whatever went in
    if any(t.grad_of is not None for t in tensors):
        from fallline.reader import grads

        sets = next(t.grad_of for t in tensors if t.grad_of is not None)
        grads.read(
            machine,
            frozenset() if "?" in sets else sets,
            "norm" if "norm" in name else "value",
            call.node,
        )
        return Tensor(False)
    result = tensors[0]
    for other in tensors[1:]:
        result = merged(result, other)
    if foreign:
        return Tensor(False, host=True)
    return reduce(machine, result, name, call)


def of_arguments(machine: Machine, call: Call) -> Tensor:
    result = Tensor(False)
    for value in map(machine.settled, call.values):
        if isinstance(value, Tensor):
            result = merged(result, value)
        elif isinstance(value, Unknown):
            result = merged(result, Tensor(None))
    if not machine.recording:
        return replace(result, graph=False)
    return result


def _made(machine: Machine, call: Call, name: str) -> Tensor:
    """torch.randn(64, 10): a tensor whose first size is known."""
    first = machine.settled(call.args[0]) if call.args else None
    if name in {"randint"}:
        shape = call.arg(2, "size") if len(call.args) > 2 else call.arg(1, "size")
        first = machine.settled(shape) if shape is not None else None
    if isinstance(first, Sequence) and first.items:
        first = machine.settled(first.items[0])
    length = first.value if isinstance(first, Const) and isinstance(first.value, int) else None
    grad = call.kwargs.get("requires_grad")
    leaf = isinstance(grad, Const) and bool(grad.value)
    return Tensor(bool(leaf), length=length, leaf=leaf, numbered=name == "arange")


def clip(
    machine: Machine,
    call: Call,
    how: str,
    target: Value | None,
    limit: Value | None,
    **facts: Any,
) -> Tensor:
    """A clip of the gradients of some parameters."""
    sets = parameter_sets(machine, target)
    known = machine.settled(limit) if limit is not None else None
    threshold = (
        float(known.value)
        if isinstance(known, Const) and isinstance(known.value, int | float)
        else None
    )
    value = machine.settled(target) if target is not None else None
    per_module = isinstance(value, Params) and value.module
    models = [
        t
        for t in machine.things.values()
        if t.kind == "model" and sets and t.sets and t.sets <= sets
    ]
    sharded = any(t.facts.get("wrapper") == "fsdp1" for t in models)
    machine.emit(
        Kind.CLIP,
        call.node,
        how=how,
        threshold=threshold,
        parameters=sets,
        per_module=per_module or None,
        closure=any(f.closing for f in machine.frames) or None,
        **{"local_shards": sharded or None, **facts},
    )
    return Tensor(False)


def _clip_norm(machine: Machine, call: Call) -> Value:
    return clip(machine, call, "norm", call.arg(0, "parameters"), call.arg(1, "max_norm"))


def _clip_value(machine: Machine, call: Call) -> Value:
    return clip(machine, call, "value", call.arg(0, "parameters"), call.arg(1, "clip_value"))


def _total_norm(machine: Machine, call: Call) -> Value:
    machine.emit(Kind.GRAD_READ, call.node, what="norm")
    return Tensor(False)


def _autograd_backward(machine: Machine, call: Call) -> Value:
    from fallline.reader.tensors import backward

    given = machine.settled(call.arg(0, "tensors") or Unknown())
    if isinstance(given, Sequence) and given.items:
        given = machine.settled(given.items[0])
    backward(machine, given, call)
    return NONE


def _grad_context(on: bool) -> Callable[[Machine, Call], Value]:
    def make(machine: Machine, call: Call) -> Value:
        if call.args and isinstance(call.args[0], Function):
            return call.args[0]
        return Context("grad", on)

    return make


def _set_grad(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.arg(0, "mode") or Unknown())
    on = bool(value.value) if isinstance(value, Const) else enabled_of(machine, value)
    if isinstance(machine.module.parent(call.node), ast.Expr):
        machine.recording = on
    return Context("grad", on)


_DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "off",
    "torch.float": "off",
}


def autocast(device_from_name: str | None) -> Callable[[Machine, Call], Value]:
    def make(machine: Machine, call: Call) -> Value:
        device = device_from_name
        position = None if device else 0
        if device is None:
            given = machine.settled(call.arg(0, "device_type") or Unknown())
            device = (
                given.value.partition(":")[0]
                if isinstance(given, Const) and isinstance(given.value, str)
                else None
            )
        dtype = call.arg(1 if position is not None else None, "dtype")
        known = machine.settled(dtype) if dtype is not None else None
        if dtype is None:
            name = {"cuda": "float16", "cpu": "bfloat16"}.get(device or "")
        else:
            name = _DTYPES.get(known.name) if isinstance(known, External) else None
        enabled = call.kwargs.get("enabled")
        if enabled is None and device_from_name and call.args:
            enabled = call.args[0]
        if not enabled_of(machine, enabled):
            return Context(
                "autocast",
                "disabled"
                if len(machine.autocast) > 1 and machine.autocast[-1] != "off"
                else "off",
            )
        return Context("autocast", name)

    return make


def _anomaly(machine: Machine, call: Call) -> Value:
    mode = call.arg(0, "mode")
    on = enabled_of(machine, mode)
    if isinstance(machine.module.parent(call.node), ast.Expr):
        machine.anomaly = machine.place(call.node) if on else None
    return Context("anomaly" if on else "")


def _checkpoint(machine: Machine, call: Call) -> Value:
    from fallline.reader.calls import call_value

    target = machine.settled(call.arg(0, "function") or Unknown())
    batchnorm = (
        target.facts.get("batchnorm")
        if isinstance(target, Thing) and target.facts.get("training") is not False
        else None
    )
    if isinstance(target, Function):
        called = ast.dump(target.node)
        batchnorm = True if "BatchNorm" in called else None
    machine.emit(Kind.CHECKPOINT, call.node, batchnorm=batchnorm)
    if isinstance(target, Thing | Function):
        return call_value(machine, target, Call(call.node, call.args[1:], {}, call.star))
    return of_arguments(machine, call)


def _compiled(machine: Machine, call: Call) -> Value:
    return (
        call.args[0]
        if call.args
        else Function(
            ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Constant(None)),
            machine.module,
        )
    )


def _first(machine: Machine, call: Call) -> Value:
    return call.args[0] if call.args else Unknown()


def _stacked(machine: Machine, call: Call) -> Value:
    return tensor_function(machine, call, "stack")


def _data_parallel(how: str) -> Callable[[Machine, Call], Value]:
    return lambda machine, call: wrapped(machine, call, how)


def _fully_shard(machine: Machine, call: Call) -> Value:
    model = machine.settled(call.args[0]) if call.args else None
    if isinstance(model, Thing) and model.kind == "model":
        model.facts["wrapper"] = "fsdp2"
        return model
    return Unknown()


def _load(machine: Machine, call: Call) -> Value:
    return Unknown("checkpoint")


def _as_tensor(machine: Machine, call: Call) -> Value:
    return Tensor(False)


def _autograd_grad(machine: Machine, call: Call) -> Value:
    from fallline.reader.tensors import perhaps_used

    result = of_arguments(machine, call)
    if not result.forwards:
        perhaps_used(machine)
    create = call.kwargs.get("create_graph")
    keep = isinstance(create, Const) and bool(create.value)
    for order in result.forwards:
        machine.events[order].facts["used"] = True
    inside = replace(result, graph=keep, divided=None, reduction=None)
    return Sequence([inside, inside, inside], machine.iteration)


_EFFECTS: dict[str, Callable[[Machine, Call], Value]] = {
    "torch.amp.GradScaler": scaler,
    "torch.cuda.amp.GradScaler": scaler,
    "torch.cpu.amp.GradScaler": scaler,
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": scaler,
    "torch.utils.data.DataLoader": loader,
    "torch.utils.data.TensorDataset": dataset,
    "torch.utils.data.DistributedSampler": sampler,
    "torch.nn.parallel.DistributedDataParallel": _data_parallel("ddp"),
    "torch.nn.DataParallel": _data_parallel("dp"),
    "torch.distributed.fsdp.FullyShardedDataParallel": _data_parallel("fsdp1"),
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": _data_parallel(
        "fsdp1"
    ),
    "torch.distributed.fsdp.fully_shard": _fully_shard,
    "torch.distributed._composable.fsdp.fully_shard": _fully_shard,
    "torch.nn.utils.clip_grad_norm_": _clip_norm,
    "torch.nn.utils.clip_grad_norm": _clip_norm,
    "torch.nn.utils.clip_grad_value_": _clip_value,
    "fallline.clip_grad_norm_": _clip_norm,
    "torch.nn.utils.get_total_norm": _total_norm,
    "torch.autograd.backward": _autograd_backward,
    "torch.autograd.grad": _autograd_grad,
    "torch.no_grad": _grad_context(False),
    "torch.autograd.no_grad": _grad_context(False),
    "torch.inference_mode": _grad_context(False),
    "torch.autograd.inference_mode": _grad_context(False),
    "torch.enable_grad": _grad_context(True),
    "torch.set_grad_enabled": _set_grad,
    "torch.autocast": autocast(None),
    "torch.amp.autocast": autocast(None),
    "torch.amp.autocast_mode.autocast": autocast(None),
    "torch.cuda.amp.autocast": autocast("cuda"),
    "torch.cuda.amp.autocast_mode.autocast": autocast("cuda"),
    "torch.cpu.amp.autocast": autocast("cpu"),
    "torch.autograd.set_detect_anomaly": _anomaly,
    "torch.autograd.detect_anomaly": _anomaly,
    "torch.autograd.anomaly_mode.set_detect_anomaly": _anomaly,
    "torch.utils.checkpoint.checkpoint": _checkpoint,
    "torch.compile": _compiled,
    "torch.jit.script": _first,
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": _first,
    "torch.nn.utils.parametrizations.weight_norm": _first,
    "torch.nn.utils.weight_norm": _first,
    "torch.nn.utils.spectral_norm": _first,
    "torch.nn.utils.parametrizations.spectral_norm": _first,
    "torch.jit.trace": _first,
    "torch.stack": _stacked,
    "torch.load": _load,
    "torch.from_numpy": _as_tensor,
    "torch.as_tensor": _as_tensor,
}
_BY_LAST: dict[str, Callable[[Machine, Call], Value]] = {
    "GradScaler": scaler,
    "DistributedSampler": sampler,
}

_BUILDERS: tuple[tuple[re.Pattern[str], Callable[[Machine, Call, str], Value]], ...] = (
    (_OPTIMIZERS, optimizer),
    (_SCHEDULERS, scheduler),
    (_LOSSES, functional_loss),
    (_LAYERS, layer),
    (_MADE, _made),
)

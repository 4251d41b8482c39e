"""What torch's functions and constructors do, by dotted name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from fallline.api import contexts, gradients
from fallline.api.arithmetic import compares_samples, merged, of_arguments, reduce
from fallline.api.call import Call
from fallline.api.gradients import backward, clip, mark_used
from fallline.api.library import Family
from fallline.api.library import Function as Handler
from fallline.api.paper import Paper
from fallline.api.torch import make
from fallline.api.torch.make import enabled_of, pads, reduction_of
from fallline.api.torch.model import METHODS
from fallline.api.values import (
    NONE,
    Const,
    Context,
    External,
    Function,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
    truth_of,
)
from fallline.events import Checkpoint, GradRead

__all__ = ["FAMILIES", "FUNCTIONS"]

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
    r"torch\.(randn|rand|zeros|ones|randint|arange|linspace|full|empty|randperm|tensor|eye|(zeros|ones|rand|randn|full|empty)_like)$"
)


def _functional_loss(paper: Paper, call: Call, name: str) -> Tensor:
    result = of_arguments(paper, call)
    return replace(
        result,
        reduction=reduction_of(paper, call),
        ragged=pads(paper, call),
        in_batch=compares_samples(paper, call),
        divided=False,
        half=None,
        depth=len(paper.loops.kinds),
    )


def _tensor_function(paper: Paper, call: Call, name: str, foreign: bool = False) -> Value:
    """Any other torch function: its result depends on its tensors."""
    tensors = [v for v in map(paper.settled, call.values) if isinstance(v, Tensor)]
    nested = [v for v in map(paper.settled, call.values) if isinstance(v, Sequence)]
    for inner in nested:
        tensors += [v for v in map(paper.settled, inner.items) if isinstance(v, Tensor)]
    if not tensors or name in {"numel", "is_tensor", "is_floating_point"}:
        return Unknown()  # plain Python values, whatever went in
    if any(t.grad_of is not None for t in tensors):
        if name in gradients.TESTS:
            return Tensor(False)
        sets = next(t.grad_of for t in tensors if t.grad_of is not None)
        gradients.read(
            paper,
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
    return reduce(paper, result, name, call)


def _made(paper: Paper, call: Call, name: str) -> Tensor:
    """torch.randn(64, 10): a tensor whose first size is known."""
    first = paper.settled(call.args[0]) if call.args else None
    if name in {"randint"}:
        shape = call.arg(2, "size") if len(call.args) > 2 else call.arg(1, "size")
        first = paper.settled(shape) if shape is not None else None
    if isinstance(first, Sequence) and first.items:
        first = paper.settled(first.items[0])
    length: int | None = None
    match first:
        case Const(int(length)) | Tensor(length=length):  # zeros_like
            pass
    leaf = truth_of(call.kwargs.get("requires_grad")) is True
    return Tensor(leaf, length=length, leaf=leaf, numbered=name == "arange")


def _clip_norm(paper: Paper, call: Call) -> Value:
    return clip(paper, call, "norm", call.arg(0, "parameters"), call.arg(1, "max_norm"))


def _clip_value(paper: Paper, call: Call) -> Value:
    return clip(paper, call, "value", call.arg(0, "parameters"), call.arg(1, "clip_value"))


def _total_norm(paper: Paper, call: Call) -> Value:
    paper.emit(GradRead(paper.place(call.node), what="norm"))
    return Tensor(False)


def _autograd_backward(paper: Paper, call: Call) -> Value:
    given = paper.settled(call.arg(0, "tensors") or Unknown())
    if isinstance(given, Sequence) and given.items:
        given = paper.settled(given.items[0])
    backward(paper, given, call)
    return NONE


def _grad_context(on: bool) -> Callable[[Paper, Call], Value]:
    def make(paper: Paper, call: Call) -> Value:
        if call.args and isinstance(call.args[0], Function):
            return call.args[0]
        return contexts.grad(on)

    return make


def _set_grad(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.arg(0, "mode") or Unknown())
    known = truth_of(value)
    on = enabled_of(paper, value) if known is None else known
    if isinstance(paper.module.parent(call.node), ast.Expr):
        paper.around.recording = on
    return contexts.grad(on)


_DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "off",
    "torch.float": "off",
}


def _autocast(device_from_name: str | None) -> Callable[[Paper, Call], Value]:
    def make(paper: Paper, call: Call) -> Value:
        device = device_from_name
        position = None if device else 0
        if device is None:
            given = paper.settled(call.arg(0, "device_type") or Unknown())
            device = (
                given.value.partition(":")[0]
                if isinstance(given, Const) and isinstance(given.value, str)
                else None
            )
        dtype = call.arg(1 if position is not None else None, "dtype")
        known = paper.settled(dtype) if dtype is not None else None
        if dtype is None:
            name = {"cuda": "float16", "cpu": "bfloat16"}.get(device or "")
        else:
            name = _DTYPES.get(known.name) if isinstance(known, External) else None
        enabled = call.kwargs.get("enabled")
        if enabled is None and device_from_name and call.args:
            enabled = call.args[0]
        if not enabled_of(paper, enabled):
            around = paper.around.autocast
            return contexts.autocast(
                "disabled" if len(around) > 1 and around[-1] != "off" else "off"
            )
        # a dtype that is computed, the default of a device that is: one of the two
        return contexts.autocast(name or "half")

    return make


def _anomaly(paper: Paper, call: Call) -> Value:
    mode = call.arg(0, "mode")
    on = enabled_of(paper, mode)
    if isinstance(paper.module.parent(call.node), ast.Expr):
        paper.around.anomaly = paper.place(call.node) if on else None
    return contexts.anomaly() if on else Context()


def _checkpoint(paper: Paper, call: Call) -> Value:
    target = paper.settled(call.arg(0, "function") or Unknown())
    batchnorm = (
        target.facts.get("batchnorm")
        if isinstance(target, Thing) and target.facts.get("training") is not False
        else None
    )
    if isinstance(target, Function):
        called = ast.dump(target.node)
        batchnorm = True if "BatchNorm" in called else None
    paper.emit(Checkpoint(paper.place(call.node), batchnorm=batchnorm))
    if isinstance(target, Thing | Function):
        return paper.call(target, Call(call.node, call.args[1:], {}, call.star))
    return of_arguments(paper, call)


def _compiled(paper: Paper, call: Call) -> Value:
    return (
        call.args[0]
        if call.args
        else Function(
            ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Constant(None)),
            paper.module,
        )
    )


def _first(paper: Paper, call: Call) -> Value:
    return call.args[0] if call.args else Unknown()


def _stacked(paper: Paper, call: Call) -> Value:
    return _tensor_function(paper, call, "stack")


def _data_parallel(how: str) -> Callable[[Paper, Call], Value]:
    return lambda paper, call: make.wrapped(paper, call, how)


def _fully_shard(paper: Paper, call: Call) -> Value:
    model = paper.settled(call.args[0]) if call.args else None
    if isinstance(model, Thing) and model.kind == "model":
        model.facts["wrapper"] = "fsdp2"
        return model
    return Unknown()


def _load(paper: Paper, call: Call) -> Value:
    return Unknown("checkpoint")


def _as_tensor(paper: Paper, call: Call) -> Value:
    return Tensor(False)


def _autograd_grad(paper: Paper, call: Call) -> Value:
    result = of_arguments(paper, call)
    mark_used(paper, result)
    for earlier, graph in paper.updates.retained:
        if not result.forwards.isdisjoint(graph):
            earlier.second = True  # the graph was kept for this
    keep = truth_of(call.kwargs.get("create_graph")) is True
    inside = replace(result, graph=keep, divided=None, reduction=None)
    return Sequence([inside, inside, inside], paper.loops.iteration)


def _by_last(build: Callable[[Paper, Call, str], Value | None]) -> Family:
    """What makes an object is told its class, not where that comes from."""
    return lambda paper, call, name: build(paper, call, name.rpartition(".")[2])


def _nothing(paper: Paper, call: Call, name: str) -> Value:
    return NONE


def _other(paper: Paper, call: Call, name: str) -> Value:
    return _tensor_function(
        paper, call, name.rpartition(".")[2], foreign=not name.startswith("torch.")
    )


def _unbound(name: str) -> Handler:
    """`nn.Module.train(self, mode)`: the method of a model, called by way of its class."""

    def called(paper: Paper, call: Call) -> Value:
        match [paper.settled(value) for value in call.args[:1]]:
            case [Thing(kind="model") as model]:
                rest = Call(call.node, call.args[1:], call.kwargs, call.star)
                return METHODS["model", name](paper, model, rest)
        return NONE

    return called


FUNCTIONS: Mapping[str, Handler] = {
    "torch.nn.Module.train": _unbound("train"),
    "torch.nn.Module.eval": _unbound("eval"),
    "torch.nn.Module.zero_grad": _unbound("zero_grad"),
    "torch.amp.GradScaler": make.scaler,
    "torch.cuda.amp.GradScaler": make.scaler,
    "torch.cpu.amp.GradScaler": make.scaler,
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": make.scaler,
    "torch.utils.data.DataLoader": make.loader,
    "torch.utils.data.TensorDataset": make.dataset,
    "torch.utils.data.DistributedSampler": make.sampler,
    "torchdata.stateful_dataloader.StatefulDataLoader": make.loader,
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler": make.sampler,
    "torch.utils.data.BatchSampler": make.batches_of,
    "torch.utils.data.sampler.BatchSampler": make.batches_of,
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
    "torch.nn.utils.get_total_norm": _total_norm,
    "torch.autograd.backward": _autograd_backward,
    "torch.autograd.grad": _autograd_grad,
    "torch.no_grad": _grad_context(False),
    "torch.autograd.no_grad": _grad_context(False),
    "torch.inference_mode": _grad_context(False),
    "torch.autograd.inference_mode": _grad_context(False),
    "torch.enable_grad": _grad_context(True),
    "torch.set_grad_enabled": _set_grad,
    "torch.autocast": _autocast(None),
    "torch.amp.autocast": _autocast(None),
    "torch.amp.autocast_mode.autocast": _autocast(None),
    "torch.cuda.amp.autocast": _autocast("cuda"),
    "torch.cuda.amp.autocast_mode.autocast": _autocast("cuda"),
    "torch.cpu.amp.autocast": _autocast("cpu"),
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

FAMILIES: tuple[tuple[re.Pattern[str], Family], ...] = (
    (_OPTIMIZERS, _by_last(make.optimizer)),
    (_SCHEDULERS, _by_last(make.scheduler)),
    (_LOSSES, _functional_loss),
    (_LAYERS, _by_last(make.layer)),
    (_MADE, _by_last(_made)),
    (re.compile(r"^torch\..*\bGradScaler$"), lambda paper, call, name: make.scaler(paper, call)),
    (
        re.compile(r"^torch\..*\bDistributedSampler$"),
        lambda paper, call, name: make.sampler(paper, call),
    ),
    (
        # what is called like it takes what torch's own takes
        re.compile(r"(^|\.)\w*DataLoader$|^torch_geometric\.(loader|data)\.\w+Loader$"),
        lambda paper, call, name: make.loader(paper, call),
    ),
    (re.compile(r"^torch\.nn\.init\."), _nothing),
    (re.compile(r"^(torch|numpy|math)\."), _other),
)

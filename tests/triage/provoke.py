"""The errors people meet, provoked: each function raises or warns as torch and the frameworks of today do. Its name is its claim's."""

from __future__ import annotations

import argparse
import copy
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

Lin = nn.Linear
ones, randn = torch.ones, torch.randn


# --- autograd ------------------------------------------------------------------------------------------------------------------------
def retain_graph() -> None:
    loss = (ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def inplace_modified() -> None:
    y = randn(3, requires_grad=True).relu()
    y += 1
    y.sum().backward()


def inplace_leaf() -> None:
    ones(2, requires_grad=True).add_(1)


def no_grad_fn() -> None:
    ones(2).sum().backward()


def scalar_outputs() -> None:
    (ones(2, requires_grad=True) * 2).backward()


def unused_in_graph() -> None:
    a, b = ones(1, requires_grad=True), ones(1, requires_grad=True)
    torch.autograd.grad((a * 2).sum(), b)


def numpy_requires_grad() -> None:
    ones(2, requires_grad=True).numpy()


def deepcopy_non_leaf() -> None:
    copy.deepcopy(ones(2, requires_grad=True) * 2)


def int_requires_grad() -> None:
    torch.tensor([1, 2], requires_grad=True)


def requires_grad_non_leaf() -> None:
    (ones(2, requires_grad=True) * 2).requires_grad = False


def view_of_leaf_inplace() -> None:
    ones(2, 2, requires_grad=True)[0].add_(1)


def once_differentiable() -> None:
    from torch.autograd.function import once_differentiable as once

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.saved_tensors[0] * g

    x = ones(1, requires_grad=True)
    (grad,) = torch.autograd.grad(Square.apply(x) * x, x, create_graph=True)
    grad.backward()


def backward_arity() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    Two.apply(ones(1, requires_grad=True), ones(1)).backward()


def backward_wrong_shape() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return ones(7)

    Wrong.apply(ones(3, requires_grad=True)).backward()


def legacy_function() -> None:
    class Old(torch.autograd.Function):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    Old()(ones(1))


def gradcheck_float32() -> None:
    torch.autograd.gradcheck(lambda x: x**3 * 100, (randn(3, requires_grad=True),))


def anomaly_nan() -> None:
    x = torch.zeros(1, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (torch.log(x) * 0).sum().backward()


def inference_mode_targets() -> None:
    with torch.inference_mode():
        t = ones(2)
    (ones(2, requires_grad=True) * t).sum().backward()


def inference_inplace() -> None:
    with torch.inference_mode():
        t = ones(2)
    t.add_(1)


def hooks_inplace() -> None:
    layer = Lin(2, 2)
    layer.register_full_backward_hook(lambda *a: None)
    out = layer(ones(1, 2))
    out += 1


def vmap_batchnorm() -> None:
    bn = nn.BatchNorm1d(3)
    torch.func.vmap(lambda x: bn(x[None]))(randn(4, 3, 5))


def vmap_random() -> None:
    torch.func.vmap(lambda x: F.dropout(x, training=True))(ones(3, 2))


def vmap_item() -> None:
    torch.func.vmap(lambda x: x * x.item())(ones(3))


def checkpoint_mismatch() -> None:
    from torch.utils.checkpoint import checkpoint

    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin().cos() if len(calls) == 1 else x.sin()

    checkpoint(block, ones(2, requires_grad=True), use_reentrant=False).sum().backward()


def checkpoint_reentrant_flag() -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(Lin(2, 2), ones(1, 2, requires_grad=True))


def unet_lora_const() -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(Lin(2, 2), ones(1, 2), use_reentrant=True)


# --- shapes and types ------------------------------------------------------------------------------------------------------------------
def shape_mismatch() -> None:
    Lin(512, 10)(ones(32, 400))


def shape_broadcast() -> None:
    ones(2, 77) + ones(2, 64)


def conv_channels() -> None:
    nn.Conv2d(3, 64, 7)(ones(8, 1, 224, 224))


def kernel_larger_than_input() -> None:
    nn.Conv2d(3, 4, 5)(ones(1, 3, 2, 2))


def view_not_contiguous() -> None:
    ones(2, 3).t().view(6)


def reshape_invalid() -> None:
    ones(6).view(4, 2)


def cat_sizes() -> None:
    torch.cat([ones(2, 3), ones(2, 4)], 0)


def stack_sizes() -> None:
    torch.stack([ones(3), ones(4)])


def expected_long() -> None:
    F.cross_entropy(randn(4, 3), ones(4))


def target_out_of_bounds() -> None:
    F.cross_entropy(randn(2, 10), torch.tensor([1, 10]))


def embedding_index() -> None:
    nn.Embedding(10, 4)(torch.tensor([10]))


def index_out_of_bounds() -> None:
    ones(3)[5]


def ce_batch_mismatch() -> None:
    F.cross_entropy(randn(4, 3), torch.zeros(5, dtype=torch.long))


def ce_multi_target() -> None:
    F.cross_entropy(randn(4, 3), torch.zeros(4, 1, dtype=torch.long))


def bce_shapes() -> None:
    F.binary_cross_entropy_with_logits(randn(4, 1), ones(4))


def bce_range() -> None:
    F.binary_cross_entropy(torch.tensor([1.5]), ones(1))


def mse_broadcast() -> None:
    F.mse_loss(randn(4, 1), randn(4))


def dtype_mismatch() -> None:
    Lin(2, 2)(ones(1, 2, dtype=torch.float64))


def result_type_cast() -> None:
    x = torch.ones(2, dtype=torch.long)
    x += 0.5


def mean_of_integers() -> None:
    torch.tensor([1, 2]).mean()


def bool_ambiguous() -> None:
    bool(ones(2) > 0)


def item_of_many() -> None:
    ones(2).item()


def half_not_implemented() -> None:
    torch.ones(2, 2, dtype=torch.int32).softmax(-1)


def batchnorm_one() -> None:
    nn.BatchNorm2d(256)(ones(1, 256, 1, 1))


def rnn_hidden_size() -> None:
    nn.LSTM(4, 8)(ones(5, 2, 4), (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)))


def attention_mask_shape() -> None:
    nn.MultiheadAttention(8, 2)(
        ones(4, 1, 8), ones(4, 1, 8), ones(4, 1, 8), attn_mask=torch.zeros(3, 3)
    )


def attention_heads() -> None:
    nn.MultiheadAttention(10, 3)


def group_norm_groups() -> None:
    nn.GroupNorm(3, 8)


def grid_negative_dim() -> None:
    ones(2, 3).sum(dim=2)


def list_to_tensor() -> None:
    torch.tensor([[1, 2], [3]])


def numpy_object() -> None:
    import numpy

    torch.from_numpy(numpy.array(["a"], dtype=object))


# --- modules and optimizers ------------------------------------------------------------------------------------------------------------
def modules_in_list() -> None:
    torch.optim.SGD([], lr=0.1)


def optimizer_generator_params() -> None:
    torch.optim.SGD(Lin(2, 2).weight, lr=0.1)


def optimizer_non_leaf() -> None:
    torch.optim.SGD([Lin(2, 2).weight * 2], lr=0.1)


def optimizer_negative_lr() -> None:
    torch.optim.Adam(Lin(2, 2).parameters(), lr=-1)


def optimizer_duplicate_params() -> None:
    p = nn.Parameter(ones(1))
    torch.optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)


def optimizer_state_groups() -> None:
    a, b = Lin(2, 2), Lin(2, 2)
    state = torch.optim.SGD(a.parameters(), lr=0.1).state_dict()
    torch.optim.SGD([{"params": b.weight}, {"params": b.bias}], lr=0.1).load_state_dict(state)


def optimizer_state_size() -> None:
    state = torch.optim.SGD(Lin(2, 2).parameters(), lr=0.1).state_dict()
    torch.optim.SGD([Lin(2, 2).weight], lr=0.1).load_state_dict(state)


def lbfgs_closure() -> None:
    torch.optim.LBFGS(Lin(2, 2).parameters()).step()


def missing_super_init() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = Lin(2, 2)

    Net()


def missing_forward() -> None:
    class Net(nn.Module):
        pass

    Net()(1)


def no_attribute_module() -> None:
    getattr(Lin(2, 2), "hid" + "den")


def assign_tensor_to_parameter() -> None:
    Lin(2, 2).weight = ones(2, 2)


def scheduler_and_skips() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    s.step()
    o.step()


def scheduler_epoch_argument() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    o.step()
    s.step(3)


def onecycle_too_many() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=1)
    for _ in range(3):
        o.step()
        s.step()


def plateau_metrics() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    torch.optim.lr_scheduler.ReduceLROnPlateau(o).step()


def clip_nonfinite_raises() -> None:
    p = nn.Parameter(ones(1))
    p.grad = torch.tensor([float("nan")])
    torch.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


# --- mixed precision ---------------------------------------------------------------------------------------------------------------------
def unscale_per_micro_batch() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.unscale_(o)
    s.unscale_(o)


def unscale_after_step() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.step(o)
    s.unscale_(o)


def scaler_step_twice() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2)).sum()).backward()
    s.step(o)
    s.step(o)


def no_inf_checks() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1)
    s.scale(ones(1))
    s.step(torch.optim.SGD(m.parameters(), lr=0.1))


def no_inf_checks_update() -> None:
    s = torch.amp.GradScaler("cpu")
    s.scale(ones(1))
    s.update()


def scaler_not_initialised() -> None:
    m = Lin(2, 1)
    m(ones(1, 2)).sum().backward()
    torch.amp.GradScaler("cpu").step(torch.optim.SGD(m.parameters(), lr=0.1))


def amp_master_weights() -> None:
    s, m = torch.amp.GradScaler("cpu"), Lin(2, 1).half()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s.scale(m(ones(1, 2).half()).sum().float()).backward()
    s.unscale_(o)


def amp_deprecated() -> None:
    torch.cuda.amp.GradScaler(enabled=False)


def autocast_deprecated() -> None:
    torch.cuda.amp.autocast(enabled=False)


def bce_autocast() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    # autocast itself asks for a device; its dispatcher does not
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            p = torch.empty(2, device="cuda", dtype=torch.float16)
            F.binary_cross_entropy(p, p)
    finally:
        torch.set_autocast_enabled("cuda", False)


def scaler_no_cuda() -> None:
    torch.amp.GradScaler("cuda")


def autocast_no_cuda() -> None:
    torch.autocast("cuda")


# --- data ----------------------------------------------------------------------------------------------------------------------------------
class _Ragged(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return ones(i + 1)


class _NoneSet(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return None


class _Dies(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        os._exit(3)


class _Raises(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        raise KeyError("image")


def collate_sizes() -> None:
    next(iter(DataLoader(_Ragged(), batch_size=4)))


def collate_none() -> None:
    next(iter(DataLoader(_NoneSet(), batch_size=2)))


def loader_empty_dataset() -> None:
    DataLoader(TensorDataset(ones(0, 2)), shuffle=True)


def loader_sampler_and_shuffle() -> None:
    d = TensorDataset(ones(4, 2))
    DataLoader(d, shuffle=True, sampler=torch.utils.data.SequentialSampler(d))


def loader_prefetch() -> None:
    DataLoader(TensorDataset(ones(4, 2)), prefetch_factor=2)


def loader_persistent() -> None:
    DataLoader(TensorDataset(ones(4, 2)), persistent_workers=True)


def loader_lambda_spawn() -> None:
    next(
        iter(
            DataLoader(
                TensorDataset(ones(4, 2)),
                num_workers=1,
                collate_fn=lambda b: b,
                multiprocessing_context="spawn",
            )
        )
    )


def worker_raises() -> None:
    next(iter(DataLoader(_Raises(), num_workers=1)))


def workers_die() -> None:
    next(iter(DataLoader(_Dies(), num_workers=1)))


def too_many_workers() -> None:
    DataLoader(TensorDataset(ones(4, 2)), num_workers=4096)


def iterable_shuffle() -> None:
    class It(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    DataLoader(It(), shuffle=True)


def random_split_sizes() -> None:
    torch.utils.data.random_split(TensorDataset(ones(4, 2)), [3, 3])


def weighted_sampler() -> None:
    torch.utils.data.WeightedRandomSampler([0.5, 0.5], num_samples=0)


# --- checkpoints -----------------------------------------------------------------------------------------------------------------------------
def module_prefix() -> None:
    Lin(2, 2).load_state_dict({f"module.{k}": v for k, v in Lin(2, 2).state_dict().items()})


def module_prefix_missing() -> None:
    nn.DataParallel(Lin(2, 2)).load_state_dict(Lin(2, 2).state_dict())


def compiled_keys() -> None:
    Lin(2, 2).load_state_dict(torch.compile(Lin(2, 2)).state_dict())


def size_mismatch() -> None:
    Lin(2, 7).load_state_dict(Lin(2, 1000).state_dict())


def missing_keys() -> None:
    nn.Sequential(Lin(2, 2), Lin(2, 2)).load_state_dict(nn.Sequential(Lin(2, 2)).state_dict())


def weights_only() -> None:
    buffer = io.BytesIO()
    torch.save({"args": argparse.Namespace(a=1)}, buffer)
    buffer.seek(0)
    torch.load(buffer)


def atomic_save() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.pt"
        torch.save(Lin(20, 20).state_dict(), file)
        file.write_bytes(file.read_bytes()[:300])
        torch.load(file)


def load_cuda_on_cpu() -> None:
    """A file that says of its tensors that they were on a GPU."""
    buffer = io.BytesIO()
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    try:
        torch.save(ones(1), buffer)
    finally:
        torch.serialization.location_tag = tag
    buffer.seek(0)
    torch.load(buffer)


def load_not_a_state_dict() -> None:
    Lin(2, 2).load_state_dict(Lin(2, 2))


def pickle_lambda() -> None:
    torch.save({"f": lambda x: x}, io.BytesIO())


def parent_directory() -> None:
    torch.save({}, "/nowhere/at/all/model.pt")


def meta_tensor_copy() -> None:
    Lin(2, 2, device="meta").to("cpu")


def meta_tensor_item() -> None:
    ones(1, device="meta").item()


# --- devices -------------------------------------------------------------------------------------------------------------------------------
def no_cuda_build() -> None:
    ones(1).cuda()


def numpy_from_cuda() -> None:
    ones(1, device="meta").numpy()


def deterministic_missing() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = ones(2, 2, requires_grad=True)
        torch.kthvalue(x, 1)
        torch.nn.functional.max_unpool2d(
            ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.long), 2
        )
        torch.Tensor.put_(ones(4), torch.tensor([0]), ones(1))
    finally:
        torch.use_deterministic_algorithms(False)


def out_of_host_memory() -> None:
    torch.empty(2**50)


# --- compile ----------------------------------------------------------------------------------------------------------------------------------
def recompile_sizes() -> None:
    import logging

    torch._dynamo.reset()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("torch._dynamo").addHandler(handler)
    f = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    try:
        for n in range(2, 14):
            f(ones(n))
    finally:
        logging.getLogger("torch._dynamo").removeHandler(handler)
    raise RuntimeError(stream.getvalue())


def compile_fullgraph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(f, backend="eager", fullgraph=True)(ones(2))


def compile_data_dependent() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    torch.compile(f, backend="eager", fullgraph=True)(ones(2))


def sdpa_backend() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = ones(1, 1, 4, 4)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        F.scaled_dot_product_attention(q, q, q)


# --- distributed, one process -------------------------------------------------------------------------------------------------------------
def group_not_initialised() -> None:
    torch.distributed.get_rank() if False else torch.distributed.barrier()


def ddp_without_group() -> None:
    nn.parallel.DistributedDataParallel(Lin(2, 2))


def rank_not_set() -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    torch.distributed.init_process_group("gloo")


def nccl_missing() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    try:
        torch.distributed.init_process_group("nccl")
    finally:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)


def _alone(body: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/s", rank=0, world_size=1
        )
        try:
            body()
        finally:
            torch.distributed.destroy_process_group()


def group_twice() -> None:
    def body() -> None:
        torch.distributed.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:29555", rank=0, world_size=1
        )

    _alone(body)


def ddp_no_grad_params() -> None:
    _alone(lambda: nn.parallel.DistributedDataParallel(Lin(2, 2).requires_grad_(False)))


def find_unused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Lin(2, 2), Lin(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x)

    def body() -> None:
        model = nn.parallel.DistributedDataParallel(Two())
        for _ in range(2):
            model(ones(1, 2)).sum().backward()

    _alone(body)


def invalid_rank() -> None:
    _alone(lambda: torch.distributed.broadcast(ones(1), src=3))


def new_group_rank() -> None:
    _alone(lambda: torch.distributed.new_group([0, 5]))


def distributed_sampler_rank() -> None:
    torch.utils.data.DistributedSampler(TensorDataset(ones(4, 2)), num_replicas=2, rank=5)


def ddp_attribute() -> None:
    def body() -> None:
        getattr(nn.parallel.DistributedDataParallel(Lin(2, 2)), "in_" + "features")

    _alone(body)


# --- frameworks ------------------------------------------------------------------------------------------------------------------------------
def lightning_manual() -> None:
    lightning, Module = _lightning()
    model = Module()
    model.automatic_optimization = False
    lightning.Trainer(max_steps=1, gradient_clip_val=1.0, **_QUIET).fit(
        model, DataLoader(ones(4, 2))
    )


def lightning_no_training_step() -> None:
    lightning, _ = _lightning()

    class Bare(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)

    lightning.Trainer(max_steps=1, **_QUIET).fit(Bare(), DataLoader(ones(4, 2)))


def lightning_no_gpu() -> None:
    lightning, _ = _lightning()
    lightning.Trainer(accelerator="gpu", **{k: v for k, v in _QUIET.items() if k != "accelerator"})


def lightning_checkpoint_metric() -> None:
    lightning, Module = _lightning()
    from lightning.pytorch.callbacks import EarlyStopping

    quiet = {**_QUIET, "limit_train_batches": 1}
    lightning.Trainer(max_epochs=1, callbacks=[EarlyStopping("val_loss")], **quiet).fit(
        Module(), DataLoader(ones(4, 2))
    )


_QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def _lightning() -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Lin(2, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return lightning, Module


def accelerate_state_twice() -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True)
    Accelerator(mixed_precision="fp16", cpu=True)


def hf_no_loss() -> None:
    _hf_train(
        lambda model: setattr(
            model,
            "forward",
            lambda input_ids=None, **_: {"logits": randn(2, 2, requires_grad=True)},
        )
    )


def hf_removed_columns() -> None:
    _hf_train(lambda model: None, columns=("texts",))


def _hf_train(change: Any, columns: tuple[str, ...] = ("input_ids", "labels")) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        )
    )
    change(model)
    rows = [
        {name: torch.tensor([1, 2]) if name != "labels" else 1 for name in columns}
        for _ in range(4)
    ]
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model,
            TrainingArguments(folder, max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True),
            train_dataset=rows,
        ).train()  # type: ignore[arg-type]


def hf_bf16_and_fp16() -> None:
    from transformers import TrainingArguments

    TrainingArguments("out", bf16=True, fp16=True)


def hf_load_best() -> None:
    from transformers import TrainingArguments

    TrainingArguments("out", load_best_model_at_end=True, eval_strategy="no", save_strategy="steps")


def hf_no_eval_dataset() -> None:
    from transformers import Trainer, TrainingArguments

    Trainer(Lin(2, 2), TrainingArguments("out", eval_strategy="epoch", report_to=[], use_cpu=True))


def hf_tokenizer_padding() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))
    DataCollatorWithPadding(tokenizer)([{"input_ids": [0]}, {"input_ids": [0, 0]}])


def hf_resize_embeddings() -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(vocab_size=20, hidden_size=10, num_attention_heads=3))


def hf_missing_model() -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained("/nowhere/a-model", local_files_only=True)


def sqrt_zero() -> None:
    x = torch.zeros(2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (x.sqrt() * 0).sum().backward()


def bf16_weights_float_input() -> None:
    Lin(2, 2).bfloat16()(ones(1, 2))


def weights_only_numpy() -> None:
    import numpy

    file = io.BytesIO()
    torch.save({"best": numpy.float64(1.0)}, file)
    file.seek(0)
    torch.load(file)


def worker_killed() -> None:
    import signal

    class Dies(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

    try:
        list(DataLoader(Dies(), num_workers=1))
    except RuntimeError as error:
        raise error.__cause__ or error from None  # the traceback shows both; the cause says why


def reentrant_with_ddp() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Lin(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return x

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            net = DistributedDataParallel(Net(), find_unused_parameters=True)
            net(ones(1, 2, requires_grad=True)).sum().backward()
        finally:
            dist.destroy_process_group()


def hf_unpadded_inputs() -> None:
    from transformers import BatchEncoding

    BatchEncoding({"input_ids": [[1], [1, 2]]}, tensor_type="pt")


def said(function: Any) -> str:
    """What a provocation raises or warns, with its type, as a person pastes it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
        except BaseException as error:  # whatever is raised is what people paste
            return f"{type(error).__name__}: {error}"
    return "\n".join(f"{w.category.__name__}: {w.message}" for w in caught)

"""The errors people meet with frameworks, provoked, and `said`: each function raises or warns as the versions of today do. Its name is its claim's."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

Lin = nn.Linear
ones, randn = torch.ones, torch.randn


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

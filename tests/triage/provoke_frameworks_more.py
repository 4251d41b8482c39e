"""More messages of Transformers, Lightning, datasets and of models that return something else than expected, provoked on a CPU. A function's name is its claim's."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.triage.provoke import _QUIET, _lightning
from tests.triage.provoke_frameworks import _gpt, _tokenizer
from torch import nn
from torch.utils.data import DataLoader

ALSO = {"sampled_nan": "invalid-distribution", "list_to_device": "batch-is-a-dict"}


def hf_no_input_ids() -> None:
    from transformers import DataCollatorWithPadding

    DataCollatorWithPadding(_tokenizer())([{"label": 1}])


def hf_nothing_left() -> None:
    from datasets import Dataset

    Dataset.from_dict({"x": []})[0]


def hf_max_steps_needed() -> None:
    from tests.triage.behaviours_trainer import _Scorer
    from torch.utils.data import IterableDataset
    from transformers import Trainer, TrainingArguments

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield {"x": torch.ones(1), "labels": 0}

    with TemporaryDirectory() as folder:
        given = TrainingArguments(folder, use_cpu=True, report_to=[])
        Trainer(_Scorer(), given, train_dataset=Stream()).train()


def hf_plateau_needs_eval() -> None:
    from transformers import TrainingArguments

    with TemporaryDirectory() as folder:
        TrainingArguments(folder, use_cpu=True, lr_scheduler_type="reduce_lr_on_plateau")


def hf_compute_loss_signature() -> None:
    class Old:
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> None:
            pass

    Old().compute_loss(None, None, num_items_in_batch=1)  # type: ignore[call-arg]


def position_table_too_short() -> None:
    torch.zeros(1, 514).expand(1, 619)


def output_object_not_tensor() -> None:
    ids = torch.ones(1, 2, dtype=torch.long)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    CausalLMOutputWithPast(logits=_gpt()(ids).logits).backward()


def output_is_a_tuple() -> None:
    nn.Sequential(nn.LSTM(2, 3))(torch.ones(1, 2)).size()


def tensor_is_not_output() -> None:
    print(nn.Linear(2, 2)(torch.ones(2)).logits)


def batch_is_a_dict() -> None:
    batch: Any = {"x": torch.ones(1)}
    batch.to("cpu")


def list_to_device() -> None:
    batch: Any = [torch.ones(1)]
    batch.to("cpu")


def forward_unexpected_argument() -> None:
    nn.Linear(2, 2)(torch.ones(2), labels=1)


def forward_missing_argument() -> None:
    nn.Bilinear(2, 2, 1)(torch.ones(2))


def unpack_count() -> None:
    for x, y in DataLoader([(1, 2, 3)]):  # type: ignore[arg-type]
        print(x, y)


def invalid_distribution() -> None:
    # torch.compile turns these checks off for the whole process
    torch.distributions.Normal(torch.tensor([float("nan")]), torch.ones(1), validate_args=True)


def sampled_nan() -> None:
    torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)


def lightning_wrong_package() -> None:
    lightning, _ = _lightning()
    lightning.Trainer(max_steps=1, **_QUIET).fit(nn.Linear(2, 1), DataLoader(torch.ones(4, 2)))


def lightning_empty_loader() -> None:
    lightning, Module = _lightning()
    loader = DataLoader(torch.ones(2, 2), batch_size=4, drop_last=True)
    lightning.Trainer(max_epochs=1, **_QUIET).fit(Module(), loader)


def lightning_eval_modules() -> None:
    lightning, Module = _lightning()
    module = Module()
    module.layer.eval()
    lightning.Trainer(max_steps=1, **_QUIET).fit(module, DataLoader(torch.ones(4, 2)))


def lightning_module_in_hparams() -> None:
    _, Module = _lightning()

    class Saved(Module):  # type: ignore[misc,valid-type]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.save_hyperparameters()

    Saved(nn.Linear(2, 1))


def datasets_lengths_differ() -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"x": [1, 2, 3, 4]})
    rows.map(lambda batch: {"y": batch["x"][:2]}, batched=True)


def datasets_map_returns() -> None:
    from datasets import Dataset

    Dataset.from_dict({"x": [1]}).map(lambda row: [row["x"]])

"""Errors and warnings of the Trainer and of Lightning around evaluation, callbacks and logging, provoked with tiny models. A function's name is its claim's."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.triage.provoke import _QUIET, _lightning
from tests.triage.provoke_frameworks import _tokenizer
from torch.utils.data import DataLoader

ALSO = {"decoding_negative_ids": "trainer-negative-labels-in-metrics"}


def decoding_negative_ids() -> None:
    _tokenizer().decode([2, -100])


def trainer_save_matches_eval() -> None:
    from transformers import TrainingArguments

    with TemporaryDirectory() as folder:
        given: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps"}
        given |= {"eval_steps": 100, "save_steps": 250, "load_best_model_at_end": True}
        TrainingArguments(folder, use_cpu=True, **given)


def trainer_early_stopping() -> None:
    from tests.triage.behaviours_trainer import _trainer
    from transformers import EarlyStoppingCallback

    with TemporaryDirectory() as folder:
        _trainer(folder, callbacks=[EarlyStoppingCallback()], save_strategy="no").train()


def lightning_validation_skipped() -> None:
    lightning, Module = _lightning()

    class Valid(Module):  # type: ignore[misc,valid-type]
        def validation_step(self, batch: Any, index: int) -> None:
            pass

    trainer = lightning.Trainer(max_steps=1, **_QUIET)
    trainer.fit(Valid(), DataLoader(torch.ones(4, 2)))


def lightning_epoch_end_hooks() -> None:
    lightning, Module = _lightning()

    class Old(Module):  # type: ignore[misc,valid-type]
        def training_epoch_end(self, outputs: Any) -> None:
            pass

    lightning.Trainer(max_steps=1, **_QUIET).fit(Old(), DataLoader(torch.ones(4, 2)))


def lightning_max_epochs() -> None:
    lightning, Module = _lightning()
    trainer = lightning.Trainer(limit_train_batches=0, **_QUIET)
    trainer.fit(Module(), DataLoader(torch.ones(4, 2)))


def lightning_torchmetrics() -> None:
    from torchmetrics.classification import BinaryF1Score

    BinaryF1Score().compute()


def lightning_batch_size_warning() -> None:
    lightning, Module = _lightning()

    class Graph(Module):  # type: ignore[misc,valid-type]
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch["x"]).sum()
            self.log("loss", loss, on_epoch=True)
            return loss

    rows = [{"x": torch.ones(3, 2), "edges": torch.ones(5, 2)}]
    trainer = lightning.Trainer(max_steps=1, **_QUIET)
    trainer.fit(Graph(), DataLoader(rows, batch_size=None))  # type: ignore[arg-type]


def asr_lengths() -> None:
    probs = torch.zeros(5, 1, 3).log_softmax(-1)
    lengths = torch.tensor([9]), torch.tensor([2])
    torch.nn.functional.ctc_loss(probs, torch.tensor([[1, 2]]), *lengths)


def pack_lengths() -> None:
    torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), torch.tensor([3, 0]))


def lstm_dropout_one_layer() -> None:
    torch.nn.LSTM(2, 3, dropout=0.5)


def metric_from_logits() -> None:
    from torchmetrics import Accuracy

    Accuracy(num_classes=3)  # type: ignore[call-arg]


def sparse_embedding() -> None:
    table = torch.nn.Embedding(4, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    torch.optim.Adam(table.parameters()).step()

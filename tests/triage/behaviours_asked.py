"""What torch does, as the answers to questions of strangers say it (claims/asked.md). Each function fails if it is not so."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn


def detach_makes_one_side_a_target() -> None:
    encoder, other = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.randn(4, 2)
    nn.functional.l1_loss(encoder(x), other(x).detach()).backward()
    assert encoder.weight.grad is not None and other.weight.grad is None


def only_leaves_keep_their_gradient() -> None:
    layer = nn.Linear(2, 1)
    hidden = layer(torch.ones(3, 2))
    loss = hidden.sum()
    loss.retain_grad()
    loss.backward()
    assert loss.grad is not None and loss.grad.item() == 1.0
    assert not hidden.retains_grad and layer.weight.grad is not None


def eval_mode_batchnorm_still_learns() -> None:
    norm = nn.BatchNorm1d(3).eval()
    assert norm.running_mean is not None
    before, weight = norm.running_mean.clone(), norm.weight.detach().clone()
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    norm(torch.randn(8, 3) + 5).pow(2).mean().backward()
    optimizer.step()
    assert torch.equal(norm.running_mean, before) and not torch.equal(norm.weight, weight)


def cudnn_flags() -> None:
    assert torch.backends.cudnn.deterministic is False
    assert isinstance(torch.backends.cudnn.benchmark, bool)


def the_trainer_logs_nan_as_zero() -> None:
    """Needs transformers: a model whose loss is NaN is logged with a loss of 0 and a norm of NaN."""
    from transformers import Trainer, TrainingArguments

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            return {"loss": (self.weight * float("nan")).sum()}

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=str(Path(folder)),
            max_steps=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(Broken(), arguments, train_dataset=[{"x": torch.ones(1)}] * 4)  # type: ignore[arg-type]
        trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert all(float(row["loss"]) == 0.0 for row in logged) and logged

"""What memory, precision, checkpoints and seeds do, as claims say it (claims/gpu-memory.md, half.md, resuming.md, repeating.md). Each function fails if it is not so."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def adam_state_comes_with_the_first_step() -> None:
    model = nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    assert not optimizer.state
    optimizer.step()
    held = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
    assert held == 2 * sum(p.numel() for p in model.parameters())


def the_trainer_collects_all_logits() -> None:
    """Needs transformers: compute_metrics gets the logits of the whole set, or what preprocess_logits_for_metrics leaves of them."""
    from transformers import Trainer, TrainingArguments

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(1, 50)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.out(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    seen: list[tuple[int, ...]] = []

    def metrics(given: Any) -> dict[str, float]:
        seen.append(given.predictions.shape)
        return {}

    rows: Any = [{"x": torch.ones(1), "labels": 0}] * 6
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=str(Path(folder)), report_to=[], use_cpu=True, disable_tqdm=True
        )
        for reduce in (None, lambda logits, labels: logits.argmax(-1)):
            Trainer(
                Wide(),
                arguments,
                eval_dataset=rows,
                compute_metrics=metrics,
                preprocess_logits_for_metrics=reduce,
            ).evaluate()
    assert seen == [(6, 50), (6,)]


def autocast_joins_the_types() -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    try:
        layer(x)
    except RuntimeError as error:
        assert "dtype" in str(error)
    else:
        raise AssertionError


def ctc_of_a_short_input_is_inf() -> None:
    log_probs = torch.randn(3, 1, 4).log_softmax(2)
    lengths = torch.tensor([3])
    target = torch.tensor([[1, 1, 2]])  # two equal in a row need four frames
    assert F.ctc_loss(log_probs, target, lengths, lengths).isinf()
    assert F.ctc_loss(log_probs, target, lengths, lengths, zero_infinity=True) == 0


def optimizer_state_follows_its_parameters() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    other = nn.Linear(2, 2, device="meta")
    second = torch.optim.Adam(other.parameters())
    second.load_state_dict(saved)
    assert {s["exp_avg"].device.type for s in second.state.values()} == {"meta"}


def a_loaded_optimizer_brings_its_rate() -> None:
    model = nn.Linear(2, 2)
    saved = torch.optim.SGD(model.parameters(), lr=0.5).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5


def an_average_lags_behind() -> None:
    value, average = 0.0, 0.0
    for _ in range(1000):
        value += 1.0
        average = 0.9999 * average + 0.0001 * value
    assert average < 0.06 * value


def a_seed_fixes_the_sequence() -> None:
    torch.manual_seed(1)
    first = [torch.rand(5), torch.rand(5)]
    torch.manual_seed(1)
    again = [torch.rand(5), torch.rand(5)]
    assert not torch.equal(*first) and all(map(torch.equal, first, again))


def an_extra_draw_shifts_all_others() -> None:
    torch.manual_seed(1)
    alone = nn.Linear(3, 3)
    torch.manual_seed(1)
    nn.Linear(2, 2)
    assert not torch.equal(alone.weight, nn.Linear(3, 3).weight)

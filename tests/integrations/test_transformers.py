"""What the Hugging Face Trainer leaves undone: a model that takes `num_items_in_batch` and ignores it is never divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
pytestmark = pytest.mark.slow


def update(tmp_path: Path, batch: int, accumulate: int, **options: Any) -> tuple[torch.Tensor, Any]:
    """What one update of eight samples adds to the weights, and the callback that watched."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from fallline.integrations.transformers import FalllineCallback

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=16, **sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = BertForSequenceClassification(config)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    data = [
        {
            "input_ids": torch.arange(i, i + 8),
            "attention_mask": torch.ones(8).long(),
            "labels": i % 2,
        }
        for i in range(8)
    ]
    args = TrainingArguments(
        str(tmp_path / "hf"),
        max_steps=4,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        optim="sgd",
        learning_rate=0.001,  # so small that four updates are four times one
        max_grad_norm=0,
        lr_scheduler_type="constant",
    )
    watching = FalllineCallback(out=tmp_path / f"run{batch}{len(options)}")
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[watching])
    for name, value in options.items():
        setattr(trainer, name, value)
    trainer.train()
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before, watching


def test_bert_with_accumulation_is_found_and_repaired(tmp_path: Path) -> None:
    whole, healthy = update(tmp_path, 8, 1)
    parts, faulty = update(tmp_path, 4, 2)
    repaired, repaired_run = update(tmp_path, 4, 2, loss_is_scaled_for_ga=False)

    assert float(parts.norm() / whole.norm()) == pytest.approx(2, rel=1e-2)
    assert float(repaired.norm() / whole.norm()) == pytest.approx(1, rel=1e-2)
    assert [f.code for f in faulty.findings if f.severity != "info"] == ["FL104"]
    assert "loss_is_scaled_for_ga = False" in faulty.findings[0].message
    for watching in (healthy, repaired_run):
        assert [f.code for f in watching.findings if f.severity != "info"] == []


def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from fallline.errors import UsageError

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "fallline.integrations.transformers", raising=False)
    with pytest.raises(UsageError, match="pip install transformers"):
        import fallline.integrations.transformers  # noqa: F401

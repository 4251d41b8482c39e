"""Which models of transformers leave accumulated losses undivided under its Trainer, and whether that is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["HEADS", "table", "update"]

_TINY = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
_POSITIONS = {"max_position_embeddings": 32}
# class → (config class, its options, what the labels are of)
HEADS: dict[str, tuple[str, dict[str, Any], str]] = {
    "LlamaForCausalLM": ("LlamaConfig", _TINY | _POSITIONS, "tokens"),
    "LlamaForSequenceClassification": (
        "LlamaConfig",
        _TINY | _POSITIONS | {"pad_token_id": 0},
        "texts",
    ),
    "BertForMaskedLM": ("BertConfig", _TINY | _POSITIONS, "tokens"),
    "BertForSequenceClassification": ("BertConfig", _TINY | _POSITIONS, "texts"),
    "BertForTokenClassification": ("BertConfig", _TINY | _POSITIONS, "classes"),
    "RobertaForSequenceClassification": ("RobertaConfig", _TINY | _POSITIONS, "texts"),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2},
        "texts",
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {
            "vocab_size": 50,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        "tokens",
    ),
    "ViTForImageClassification": (
        "ViTConfig",
        {k: v for k, v in _TINY.items() if k != "vocab_size"} | {"image_size": 16, "patch_size": 8},
        "images",
    ),
}


def samples(kind: str) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    if kind == "images":
        pictures = torch.randn(8, 3, 16, 16, generator=generator)
        return [{"pixel_values": p, "labels": i % 2} for i, p in enumerate(pictures)]
    texts = torch.randint(3, 50, (8, 12), generator=generator)
    labels: dict[str, Callable[[int], Any]] = {
        "tokens": lambda i: texts[i].clone(),
        "classes": lambda i: texts[i] % 2,
        "texts": lambda i: i % 2,
    }
    mask = torch.ones(12, dtype=torch.long)
    return [
        {"input_ids": text, "attention_mask": mask, "labels": labels[kind](i)}
        for i, text in enumerate(texts)
    ]


def make(name: str) -> nn.Module:
    import transformers

    config, options, _ = HEADS[name]
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
    for module in model.modules():
        for probability in ("p", "dropout"):
            if isinstance(getattr(module, probability, None), float):
                setattr(module, probability, 0.0)
    return model


def update(
    model: nn.Module, kind: str, folder: Path, batch: int, accumulate: int, **options: Any
) -> tuple[torch.Tensor, list[str]]:
    """What four small steps add to the weights, and the codes of what was found."""
    from transformers import Trainer, TrainingArguments

    from fallline.integrations.transformers import FalllineCallback

    model = copy.deepcopy(model)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    args = TrainingArguments(
        str(folder / "hf"),
        max_steps=4,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        optim="sgd",
        learning_rate=1e-4,  # so small that four updates are four times one
        max_grad_norm=0,
        lr_scheduler_type="constant",
    )
    watching = FalllineCallback(out=folder / "run")
    trainer = Trainer(model=model, args=args, train_dataset=samples(kind), callbacks=[watching])
    for name, value in options.items():
        setattr(trainer, name, value)
    trainer.train()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return after - before, [f.code for f in watching.findings if f.severity != "info"]


def measured(name: str, folder: Path) -> tuple[float, float, list[str]]:
    """The update of two micro-batches over that of the big batch, the same repaired, and what was found."""
    model, kind = make(name), HEADS[name][2]
    whole, _ = update(model, kind, folder, 8, 1)
    parts, found = update(model, kind, folder, 4, 2)
    repaired, _ = update(model, kind, folder, 4, 2, loss_is_scaled_for_ga=False)
    return float(parts.norm() / whole.norm()), float(repaired.norm() / whole.norm()), found


def table(folder: Path) -> str:
    rows = [
        "| model | update of two micro-batches / of the big batch | found | with `loss_is_scaled_for_ga = False` |",
        "|---|---|---|---|",
    ]
    for name in HEADS:
        ratio, repaired, found = measured(name, folder)
        rows.append(
            f"| `{name}` | {ratio:.2f} | {', '.join(found) or 'nothing'} | {repaired:.2f} |"
        )
    return "\n".join(rows)

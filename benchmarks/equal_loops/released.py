"""transformers' own Trainer and nothing else: what its release makes of an accumulation over unequal numbers of tokens.

PYTHONPATH=/tmp/old fallline equal benchmarks/equal_loops/released.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    rows = [s["input_ids"] for s in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    labels = pad(rows, batch_first=True, padding_value=-100)
    ids = pad(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (labels != -100).long(), "labels": labels}


def main() -> None:
    torch.manual_seed(0)
    data = [{"input_ids": torch.randint(1, 32, (n,))} for n in torch.randint(4, 30, (16,)).tolist()]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(folder, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")  # fmt: skip
        Trainer(model, options, data_collator=collate, train_dataset=data).train()  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

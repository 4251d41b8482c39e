"""transformers' Trainer on a language model of two layers, with a switch for what is wrong with it."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

K = 4


def model() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def sentences(count: int, *, ragged: bool = True) -> list[dict[str, Tensor]]:
    lengths = torch.randint(4, 12, (count,)).tolist() if ragged else [10] * count
    return [{"input_ids": torch.randint(1, 32, (n,))} for n in lengths]


def collate(samples: list[dict[str, Tensor]], fault: str = "") -> dict[str, Tensor]:
    longest = max(len(s["input_ids"]) for s in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        tokens = sample["input_ids"]
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        if fault == "labels shifted twice":
            labels[row, : len(tokens) - 1] = tokens[1:]
        else:
            labels[row, : len(tokens)] = tokens
    if fault == "padding trained":
        labels[labels == -100] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Custom(Trainer):
    """What people write into `compute_loss` and `training_step`."""

    fault = ""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        if (
            self.fault == "mean of means"
        ):  # the model divides by the tokens of its micro-batch, the Trainer by nothing
            output = model(**inputs)
            loss = (
                output.loss / self.args.gradient_accumulation_steps
                if model.training
                else output.loss
            )
            return (loss, output) if return_outputs else loss
        if self.fault in (
            "undivided",
            "right mean at once",
        ):  # the mean of a micro-batch, though the Trainer thinks it is normalised
            output = model(**inputs)
            return (output.loss, output) if return_outputs else output.loss
        if self.fault == "divided twice":
            found = super().compute_loss(
                model, inputs, return_outputs, num_items_in_batch=num_items_in_batch
            )
            loss, rest = found if return_outputs else (found, None)
            loss = loss / self.args.gradient_accumulation_steps if model.training else loss
            return (loss, rest) if return_outputs else loss
        return super().compute_loss(
            model, inputs, return_outputs, num_items_in_batch=num_items_in_batch
        )


def train(fault: str = "") -> None:
    torch.manual_seed(0)
    Custom.fault = fault
    short = fault in ("right flush",)
    k = 1 if fault == "right mean at once" else K
    equal_lengths = fault in ("undivided", "divided twice", "right equal lengths")
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, per_device_train_batch_size=2 * K // k, gradient_accumulation_steps=k, max_steps=2, report_to=[],
            eval_strategy="epoch", use_cpu=True, learning_rate=1e-3, disable_tqdm=True, save_strategy="no",
            gradient_checkpointing=fault == "right checkpointing", bf16=fault == "right bf16",
            max_grad_norm=1000.0 if fault != "right clip" else 0.1,
        )  # fmt: skip
        trainer = Custom(
            model(), options, data_collator=lambda s: collate(s, fault),
            train_dataset=sentences(22 if short else 16, ragged=not equal_lengths), eval_dataset=sentences(6, ragged=not equal_lengths),  # type: ignore[arg-type]
        )  # fmt: skip
        trainer.train()


LOOPS = {"train": train}

if __name__ == "__main__":
    train(" ".join(sys.argv[1:]))

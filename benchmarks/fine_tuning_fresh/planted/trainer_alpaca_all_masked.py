# FL011: after tatsu-lab/stanford_alpaca's train.py, where the length of the source is that of the whole example
import copy

import torch
from tiny import arguments, model, pairs, tokenizer
from transformers import Trainer

words = tokenizer()
sources = [f"### Instruction:\n{q}\n\n### Response:" for q, _ in pairs()]
examples = [s + a + words.eos_token for s, (_, a) in zip(sources, pairs(), strict=True)]
input_ids = [torch.tensor(words(text)["input_ids"]) for text in examples]
lengths = [len(words(text)["input_ids"]) for text in examples]
labels = copy.deepcopy(input_ids)
for label, length in zip(labels, lengths, strict=True):
    label[:length] = -100
data = [{"input_ids": i, "labels": x} for i, x in zip(input_ids, labels, strict=True)]


def collate(rows):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([r["input_ids"] for r in rows], batch_first=True, padding_value=words.pad_token_id)
    targets = pad([r["labels"] for r in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "labels": targets, "attention_mask": ids.ne(words.pad_token_id)}


Trainer(model(), arguments(), train_dataset=data, data_collator=collate).train()  # HERE

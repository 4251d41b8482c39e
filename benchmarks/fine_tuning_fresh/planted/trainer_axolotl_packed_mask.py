# FL015: after axolotl's multipack collator, with one attention mask of ones for the whole row
import torch
from tiny import arguments, model, texts, tokenizer
from transformers import Trainer

words = tokenizer()
data = [{"input_ids": words(t + "</s>")["input_ids"]} for t in texts(48)]


def collate(samples):
    rows = [s["input_ids"] for s in samples]
    ids = torch.tensor([[t for row in rows for t in row]])
    positions = torch.tensor([[p for row in rows for p in range(len(row))]])
    labels = ids.masked_fill(positions == 0, -100)
    mask = torch.ones_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "labels": labels}


Trainer(model("mistral"), arguments(), train_dataset=data, data_collator=collate).train()  # HERE

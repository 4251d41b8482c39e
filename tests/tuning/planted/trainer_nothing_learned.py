# FL011: a collator that finds no answer in any sample
from tiny import arguments, model, pairs, tokenizer
from transformers import Trainer

words = tokenizer()


def collate(samples):
    batch = words([f"{q} Answer: {a}</s>" for q, a in samples], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    marker = words.convert_tokens_to_ids("<|im_start|>")
    for row, ids in enumerate(batch["input_ids"].tolist()):
        start = ids.index(marker) if marker in ids else len(ids)
        labels[row, :start] = -100
    return {**batch, "labels": labels}


trainer = Trainer(
    model(), arguments(remove_unused_columns=False), train_dataset=pairs(), data_collator=collate
)
trainer.train()  # HERE

# FL015: samples are concatenated with positions, and the first token of each counts
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorWithFlattening, Trainer

words = tokenizer()
data = [{"input_ids": words(t + "</s>")["input_ids"]} for t in texts()]


def collate(samples):
    batch = DataCollatorWithFlattening(return_position_ids=True)(samples)
    batch["labels"] = batch["input_ids"].clone()
    return batch


trainer = Trainer(model(), arguments(), train_dataset=data, data_collator=collate)
trainer.train()  # HERE

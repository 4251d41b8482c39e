# FL016: samples are padded to one length and their labels are copies
from tiny import arguments, model, texts, tokenizer
from transformers import Trainer, default_data_collator

words = tokenizer()
data = [dict(words(t + "</s>", padding="max_length", max_length=48)) for t in texts()]
for sample in data:
    sample["labels"] = list(sample["input_ids"])
trainer = Trainer(model(), arguments(), train_dataset=data, data_collator=default_data_collator)
trainer.train()  # HERE

# the stock collator for packed samples
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorWithFlattening, Trainer

words = tokenizer()
data = [{"input_ids": words(t + "</s>")["input_ids"]} for t in texts()]
trainer = Trainer(
    model(), arguments(), train_dataset=data, data_collator=DataCollatorWithFlattening()
)
trainer.train()

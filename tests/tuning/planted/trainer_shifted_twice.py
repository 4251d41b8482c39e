# FL012: the data set holds shifted labels
from tiny import arguments, model, texts, tokenizer
from transformers import Trainer, default_data_collator

words = tokenizer()
stream = words(" ".join(texts()))["input_ids"]
data = [
    {"input_ids": stream[i : i + 32], "labels": stream[i + 1 : i + 33]}
    for i in range(0, len(stream) - 33, 16)
]
trainer = Trainer(
    model("gpt2"), arguments(), train_dataset=data, data_collator=default_data_collator
)
trainer.train()  # HERE

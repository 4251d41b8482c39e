# FL016: samples were padded before the trainer got them, and it takes the padding for text
from datasets import Dataset
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [
    {"input_ids": words(t + "</s>", padding="max_length", max_length=48)["input_ids"]}
    for t in texts()
]
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()  # HERE

# FL028: the same sample over and over
from datasets import Dataset
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [{"text": texts()[0]} for _ in range(32)]
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()  # HERE

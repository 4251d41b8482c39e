# TRL without padding
from datasets import Dataset
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [{"text": t} for t in texts()]
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet(padding_free=True, max_length=None)),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()

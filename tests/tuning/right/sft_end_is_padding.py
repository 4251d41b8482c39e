# TRL masks padding by position, so the end token may be the padding
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer(pad="</s>")
rows = [{"prompt": q, "completion": " " + a} for q, a in pairs()]
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()

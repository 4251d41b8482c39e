# TRL on prompts and completions
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [{"prompt": q, "completion": " " + a} for q, a in pairs()]
trainer = SFTTrainer(
    model("qwen2"),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()

# FL014: prompts already begin with the token that the tokenizer adds
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer()
rows = [{"prompt": "<s>" + q, "chosen": " " + a, "rejected": " no"} for q, a in pairs()]
trainer = DPOTrainer(
    model(),
    ref_model=model(),
    args=DPOConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()  # HERE

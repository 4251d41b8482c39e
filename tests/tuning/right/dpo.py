# DPO with a reference that TRL makes
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer()
rows = [{"prompt": q, "chosen": " " + a, "rejected": " no"} for q, a in pairs()]
trainer = DPOTrainer(
    model(),
    ref_model=model(),
    args=DPOConfig(**quiet()),
    train_dataset=Dataset.from_list(rows[:18]),
    eval_dataset=Dataset.from_list(rows[18:]),
    processing_class=words,
)
trainer.train()

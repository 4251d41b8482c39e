# FL026: half of the evaluation set is in the training set
from datasets import Dataset
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [{"text": t} for t in texts(40)]
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows[:32]),
    eval_dataset=Dataset.from_list(rows[24:]),
    processing_class=words,
)
trainer.train()  # HERE

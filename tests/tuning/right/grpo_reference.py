# GRPO with a KL term
from datasets import Dataset
from tiny import pairs, quiet, saved, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(**quiet(num_generations=4, max_completion_length=8, beta=0.04))
data = Dataset.from_list([{"prompt": q} for q, _ in pairs()])
trainer = GRPOTrainer(
    saved("qwen2"), reward, args=config, train_dataset=data, processing_class=words
)
trainer.train()

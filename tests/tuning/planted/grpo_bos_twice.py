# FL014: prompts are rendered before, and the tokenizer adds another beginning
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(**quiet(num_generations=4, max_completion_length=8))
data = Dataset.from_list([{"prompt": "<s>" + q} for q, _ in pairs()])
trainer = GRPOTrainer(model(), reward, args=config, train_dataset=data, processing_class=words)
trainer.train()  # HERE

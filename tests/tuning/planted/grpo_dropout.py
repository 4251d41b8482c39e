# FL024: dropout is active while old log-probabilities are computed and while they are trained
from datasets import Dataset
from tiny import model, pairs, quiet, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    **quiet(num_generations=4, max_completion_length=8, num_iterations=2, temperature=1.0)
)
data = Dataset.from_list([{"prompt": q} for q, _ in pairs()])
trainer = GRPOTrainer(
    model("gpt2", resid_pdrop=0.3, embd_pdrop=0.3),
    reward,
    args=config,
    train_dataset=data,
    processing_class=words,
)
trainer.train()  # HERE

# GRPO with LoRA
from datasets import Dataset
from peft import LoraConfig
from tiny import model, pairs, quiet, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    **quiet(
        num_generations=4, max_completion_length=8, beta=0.04, num_iterations=2, learning_rate=1e-3
    )
)
data = Dataset.from_list([{"prompt": q} for q, _ in pairs()])
lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
trainer = GRPOTrainer(
    model(), reward, args=config, train_dataset=data, processing_class=words, peft_config=lora
)
trainer.train()

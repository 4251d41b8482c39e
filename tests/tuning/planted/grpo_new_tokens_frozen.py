# FL018: GRPO with LoRA on a vocabulary that grew
from datasets import Dataset
from peft import LoraConfig
from tiny import model, pairs, quiet, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"
net = model(vocabulary=len(words))
words.add_tokens(["<think>"])
net.resize_token_embeddings(len(words))  # HERE


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(**quiet(num_generations=4, max_completion_length=8))
data = Dataset.from_list([{"prompt": q + " <think>"} for q, _ in pairs()])
lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
trainer = GRPOTrainer(
    net, reward, args=config, train_dataset=data, processing_class=words, peft_config=lora
)
trainer.train()

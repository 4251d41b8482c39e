# FL019: GRPO on an adapter that is merged
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny import model, pairs, quiet, tokenizer
from trl import GRPOConfig, GRPOTrainer

words = tokenizer()
words.padding_side = "left"
net = get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
)
net.merge_adapter()


def reward(completions, **_):
    return [float(len(c)) for c in completions]


config = GRPOConfig(**quiet(num_generations=4, max_completion_length=8))
data = Dataset.from_list([{"prompt": q} for q, _ in pairs()])
trainer = GRPOTrainer(net, reward, args=config, train_dataset=data, processing_class=words)
trainer.train()  # HERE

# DPO with LoRA: the reference is the model without its adapter
from datasets import Dataset
from peft import LoraConfig
from tiny import model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer()
rows = [{"prompt": q, "chosen": " " + a, "rejected": " no"} for q, a in pairs()]
lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
trainer = DPOTrainer(
    model(),
    args=DPOConfig(**quiet(learning_rate=1e-3)),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
    peft_config=lora,
)
trainer.train()

# TRL with LoRA
from datasets import Dataset
from peft import LoraConfig
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
rows = [{"text": t} for t in texts()]
lora = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
    peft_config=lora,
)
trainer.train()

# after alignment-handbook's run_dpo.py with adapters: the reference is the model without them
from datasets import Dataset
from peft import LoraConfig
from tiny import CHATML, model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer


def turn(role, text):
    return [{"role": role, "content": text}]


rows = [
    {"prompt": turn("user", q), "chosen": turn("assistant", a), "rejected": turn("assistant", "no")}
    for q, a in pairs()
]
trainer = DPOTrainer(
    model(),
    args=DPOConfig(**quiet(beta=0.01, learning_rate=5e-6)),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer(chat=CHATML, bos=False),
    peft_config=LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, task_type="CAUSAL_LM"),
)
trainer.train()

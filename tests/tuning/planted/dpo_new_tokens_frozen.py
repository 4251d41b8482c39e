# FL018: DPO with LoRA on a vocabulary that grew
from datasets import Dataset
from peft import LoraConfig
from tiny import model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer()
net = model(vocabulary=len(words))
words.add_tokens(["<yes>"])
net.resize_token_embeddings(len(words))  # HERE
rows = [{"prompt": q, "chosen": " <yes> " + a, "rejected": " no"} for q, a in pairs()]
lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
trainer = DPOTrainer(
    net,
    args=DPOConfig(**quiet()),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
    peft_config=lora,
)
trainer.train()

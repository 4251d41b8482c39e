# FL018: tokens were added, and LoRA trains only the attention
from datasets import Dataset
from peft import LoraConfig
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
net = model(vocabulary=len(words))
words.add_tokens(["<tool>"])
net.resize_token_embeddings(len(words))  # HERE
data = Dataset.from_list([{"text": t + " <tool>"} for t in texts()])
lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
trainer = SFTTrainer(
    net, args=SFTConfig(**quiet()), train_dataset=data, processing_class=words, peft_config=lora
)
trainer.train()

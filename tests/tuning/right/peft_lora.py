# LoRA in a plain loop
import torch
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = get_peft_model(
    model(),
    LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], lora_dropout=0.1),
)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# FL019: the optimizer was built before the adapters
import torch
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
net = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]))


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss
    loss.backward()  # HERE
    optimizer.step()
    optimizer.zero_grad()

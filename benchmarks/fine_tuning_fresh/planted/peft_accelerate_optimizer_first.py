# FL019: after PEFT's causal language modelling example with Accelerate, where the optimizer is made before the adapters
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer

accelerator = Accelerator(cpu=True)
words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
net = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32))


def collate(rows):
    batch = words([r + "</s>" for r in rows], padding=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


net, train_dataloader, optimizer = accelerator.prepare(net, loader(texts(), collate), optimizer)
for batch in train_dataloader:
    loss = net(**batch).loss
    accelerator.backward(loss)  # HERE
    optimizer.step()
    optimizer.zero_grad()

# FL019: the forward pass runs with the adapters switched off
import torch
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = get_peft_model(
    model(),
    LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]
    ),
)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


net.base_model.disable_adapter_layers()
for parameter in net.base_model.model.lm_head.parameters():
    parameter.requires_grad = True
for batch in loader(texts(), collate):
    loss = net(**batch).loss
    loss.backward()  # HERE
    optimizer.step()
    optimizer.zero_grad()

# FL019: adapters of one's own are made and never called
import torch
from tiny import loader, model, texts, tokenizer
from torch import nn


class WithLora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        for parameter in base.parameters():
            parameter.requires_grad = False
        base.lm_head.weight.requires_grad = True
        self.lora_A = nn.Linear(32, 4, bias=False)
        self.lora_B = nn.Linear(4, 32, bias=False)

    def forward(self, **batch):
        return self.base(**batch)


words = tokenizer()
net = WithLora(model())
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss
    loss.backward()  # HERE
    optimizer.step()
    optimizer.zero_grad()

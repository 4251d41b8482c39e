# FL013: the instruction counts like the response
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    texts = [f"### Instruction:\n{q}\n### Response:\n{a}</s>" for q, a in samples]
    batch = words(texts, padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(pairs(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

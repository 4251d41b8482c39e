# a padded batch, masked by the attention mask
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model("mistral")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

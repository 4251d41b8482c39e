# FL017: tokens were added and the model was not resized
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
words.add_tokens(["<tool>"])
net = model(vocabulary=len(words) - 1)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    batch = words([s + " <tool></s>" for s in samples], padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

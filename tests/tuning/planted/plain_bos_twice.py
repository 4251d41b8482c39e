# FL014: the text already begins with the token that the tokenizer adds
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    batch = words(
        [words.bos_token + s + words.eos_token for s in samples], padding=True, return_tensors="pt"
    )
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(texts(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

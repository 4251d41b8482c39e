# FL010: the padding token is the end token, and the loop masks all of them
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer(pad="</s>")
net = model("gpt2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    labels = batch["input_ids"].clone()
    labels[labels == words.pad_token_id] = -100
    return {**batch, "labels": labels}


for batch in loader(texts(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

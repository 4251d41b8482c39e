# FL011: prompts longer than the cut leave whole batches without a label
import torch
from tiny import loader, model, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
samples = [("what is this? " * (12 if i // 2 % 2 else 1), f"it is {i}</s>") for i in range(16)]


def collate(rows):
    ids = [words(q)["input_ids"] + words(a, add_special_tokens=False)["input_ids"] for q, a in rows]
    labels = [
        [-100] * len(words(q)["input_ids"]) + words(a, add_special_tokens=False)["input_ids"]
        for q, a in rows
    ]
    ids, labels = [i[:40] for i in ids], [x[:40] for x in labels]
    longest = max(map(len, ids))
    batch = torch.tensor([i + [0] * (longest - len(i)) for i in ids])
    return {
        "input_ids": batch,
        "attention_mask": (batch != 0).long(),
        "labels": torch.tensor([x + [-100] * (longest - len(x)) for x in labels]),
    }


for batch in loader(samples, collate, batch=2):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

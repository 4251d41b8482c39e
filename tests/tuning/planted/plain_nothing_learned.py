# FL011: the response template never matches, so every label is -100
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
template = words("### Response:", add_special_tokens=False)["input_ids"]


def collate(samples):
    batch = words(
        [f"{q} ### Answer: {a}</s>" for q, a in samples], padding=True, return_tensors="pt"
    )
    labels = torch.full_like(batch["input_ids"], -100)
    for row, ids in enumerate(batch["input_ids"].tolist()):
        for start in range(len(ids)):
            if ids[start : start + len(template)] == template:
                labels[row, start + len(template) :] = batch["input_ids"][
                    row, start + len(template) :
                ]
    return {**batch, "labels": labels}


for batch in loader(pairs(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# FL010: prompts are masked, and no answer ends with the end token
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer()
net = model("qwen2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    rows = [
        (words(q)["input_ids"], words(a, add_special_tokens=False)["input_ids"]) for q, a in samples
    ]
    longest = max(len(q) + len(a) for q, a in rows)
    ids = torch.tensor([q + a + [0] * (longest - len(q + a)) for q, a in rows])
    labels = torch.tensor([[-100] * len(q) + a + [-100] * (longest - len(q + a)) for q, a in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


for batch in loader(pairs(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# FL015: positions restart, but with a cache Transformers does not look for packed samples
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model("qwen2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    rows = [words(s + "</s>")["input_ids"] for s in samples]
    ids = torch.tensor([[t for row in rows for t in row]])
    positions = torch.tensor([[p for row in rows for p in range(len(row))]])
    labels = torch.tensor([[-100 if p == 0 else t for row in rows for p, t in enumerate(row)]])
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


for batch in loader(texts(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

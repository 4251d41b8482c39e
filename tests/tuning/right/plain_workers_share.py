# workers of a loader that share a stream
import torch
from tiny import model, texts, tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(texts()[worker.id :: worker.num_workers])


def collate(samples):
    batch = words([s + "</s>" for s in samples], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {**batch, "labels": labels}


for batch in DataLoader(Stream(), batch_size=4, collate_fn=collate, num_workers=2):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

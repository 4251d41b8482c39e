# the loop shifts, masks and divides by what counts
import torch
from tiny import loader, model, texts, tokenizer
from torch.nn import functional as F

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    return words([s + "</s>" for s in samples], padding=True, return_tensors="pt")


for batch in loader(texts(), collate):
    logits = net(**batch).logits[:, :-1]
    targets, mask = batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = (each * mask.flatten()).sum() / mask.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

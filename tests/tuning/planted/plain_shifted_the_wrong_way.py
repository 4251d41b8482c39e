# FL012: logits and labels are cut at the wrong ends
import torch
from tiny import model, texts, tokenizer
from torch.nn import functional as F

words = tokenizer()
net = model()
stream = torch.tensor(words(" ".join(texts()))["input_ids"])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(6):
    at = torch.randint(len(stream) - 33, (4,))
    ids = torch.stack([stream[i : i + 32] for i in at])
    logits = net(input_ids=ids).logits  # HERE
    loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

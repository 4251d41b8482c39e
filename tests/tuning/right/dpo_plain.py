# DPO by hand
import copy

import torch
from tiny import loader, model, pairs, tokenizer
from torch.nn import functional as F

words = tokenizer()
policy = model()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)


def score(net, batch):
    logits = net(**batch).logits[:, :-1].log_softmax(-1)
    each = logits.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    return (each * batch["attention_mask"][:, 1:]).sum(1)


def encode(texts):
    return words(texts, padding=True, return_tensors="pt")


for rows in loader(pairs(), list):
    good, bad = encode([q + a + "</s>" for q, a in rows]), encode([q + " no</s>" for q, a in rows])
    with torch.no_grad():
        fixed = score(reference, good) - score(reference, bad)
    loss = -F.logsigmoid(0.1 * (score(policy, good) - score(policy, bad) - fixed)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

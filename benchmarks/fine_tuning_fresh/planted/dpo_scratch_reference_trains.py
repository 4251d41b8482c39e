# FL021: after rasbt/LLMs-from-scratch's DPO from scratch, where the reference stays in train mode
import copy

import torch
from tiny import loader, model, pairs, tokenizer
from torch.nn import functional as F

words = tokenizer()
policy_model = model("gpt2")
reference_model = copy.deepcopy(policy_model)
reference_model.train()
policy_model.train()
optimizer = torch.optim.AdamW(policy_model.parameters(), lr=5e-6, weight_decay=0.01)


def logprobs(net, batch):
    found = net(batch["input_ids"], attention_mask=batch["attention_mask"]).logits  # HERE
    found = F.log_softmax(found[:, :-1], dim=-1).gather(-1, batch["input_ids"][:, 1:, None])
    mask = batch["attention_mask"][:, 1:]
    return (found[..., 0] * mask).sum(-1) / mask.sum(-1)


for rows in loader(pairs(), list):
    chosen = words([q + a + "</s>" for q, a in rows], padding=True, return_tensors="pt")
    rejected = words([q + " no</s>" for q, _ in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        reference = logprobs(reference_model, chosen) - logprobs(reference_model, rejected)
    policy = logprobs(policy_model, chosen) - logprobs(policy_model, rejected)
    loss = -F.logsigmoid(0.1 * (policy - reference)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

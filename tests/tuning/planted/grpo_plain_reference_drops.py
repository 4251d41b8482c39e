# FL021: the reference of the KL term is in train mode
import copy

import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
policy = model("gpt2").train()
reference = copy.deepcopy(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
policy.eval()
torch.manual_seed(0)


def scores(net, ids):
    logits = net(input_ids=ids).logits[:, :-1]  # HERE
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


for question, _ in pairs(6):
    prompt = torch.tensor([words(question)["input_ids"]] * 4)
    ids = policy.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=8,
        do_sample=True,
        pad_token_id=0,
        eos_token_id=419,
    )
    rewards = (ids[:, prompt.shape[1] :] % 7 == 0).float().sum(1)
    advantages = rewards - rewards.mean()
    with torch.no_grad():
        fixed = scores(reference, ids)
    logp = scores(policy, ids)
    kl = (fixed - logp).exp() - (fixed - logp) - 1
    loss = (-(logp * advantages[:, None]) + 0.04 * kl).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

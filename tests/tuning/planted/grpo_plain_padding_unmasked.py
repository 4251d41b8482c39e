# FL024: the sampler attends to the padding on the left, the trainer does not
import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
words.padding_side = "left"
policy = model().eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
torch.manual_seed(0)
for start in range(0, 24, 4):
    batch = words(
        [q * (1 + i % 2) for i, (q, _) in enumerate(pairs()[start : start + 4])],
        padding=True,
        return_tensors="pt",
    )
    ids, mask = batch["input_ids"], batch["attention_mask"]
    width = ids.shape[1]
    with torch.no_grad():
        for _ in range(6):
            after = policy(input_ids=ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(after, 1)], dim=1)
    mask = torch.cat([mask, torch.ones(4, 6, dtype=torch.long)], dim=1)
    rewards = (ids[:, width:] % 7 == 0).float().sum(1)
    advantages = rewards - rewards.mean() + 0.1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = policy(input_ids=ids, attention_mask=mask, position_ids=positions)  # HERE
    logits = output.logits[:, width - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, ids[:, width:, None])[..., 0]
    loss = -(logp * advantages[:, None]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

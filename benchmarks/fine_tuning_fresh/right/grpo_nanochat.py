# after karpathy/nanochat's chat_rl.py: sampled in eval mode, scored with gradients, advantages without a standard deviation
import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
net = model("qwen2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
torch.manual_seed(0)


@torch.no_grad()
def get_batch(question):
    net.eval()
    prompt = torch.tensor([words(question)["input_ids"]] * 4)
    ids = net.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=True, pad_token_id=0, eos_token_id=419)  # fmt: skip
    targets = ids[:, 1:].clone()
    targets[:, : prompt.shape[1] - 1] = -1
    rewards = (ids[:, prompt.shape[1] :] % 5 == 0).float().sum(1)
    return ids[:, :-1], targets, rewards, rewards - rewards.mean()


for question, _ in pairs(6):
    inputs, targets, rewards, advantages = get_batch(question)
    net.train()
    logits = net(inputs).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 420), targets.reshape(-1), ignore_index=-1, reduction="none"
    )
    logp = -loss.view_as(targets)
    pg_obj = (logp * advantages.unsqueeze(-1)).sum() / (targets >= 0).sum().clamp(min=1)
    (-pg_obj).backward()
    optimizer.step()
    net.zero_grad(set_to_none=True)

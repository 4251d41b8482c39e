# FL024: after OpenRLHF's PPO actor: old log-probabilities in eval mode, the actor in train mode with dropout
import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
actor = model("gpt2", resid_pdrop=0.2, embd_pdrop=0.2)
optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-5)
torch.manual_seed(0)


def log_probs(ids, mask, start):
    logits = actor(input_ids=ids, attention_mask=mask).logits  # HERE
    found = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return found[:, start - 1 :]


for question, _ in pairs(6):
    prompt = torch.tensor([words(question)["input_ids"]] * 4)
    actor.eval()
    ids = actor.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=True, pad_token_id=0, eos_token_id=419)  # fmt: skip
    mask = torch.ones_like(ids)
    with torch.no_grad():
        old_log_probs = log_probs(ids, mask, prompt.shape[1])
    rewards = (ids % 3 == 0).float().mean(1)
    advantages = (rewards - rewards.mean())[:, None]
    actor.train()
    ratio = (log_probs(ids, mask, prompt.shape[1]) - old_log_probs).exp()
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

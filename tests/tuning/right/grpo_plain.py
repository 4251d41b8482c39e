# GRPO by hand: sampled and scored in eval mode
import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
policy = model("gpt2").eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
torch.manual_seed(0)
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
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logits = policy(input_ids=ids).logits[:, prompt.shape[1] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, ids[:, prompt.shape[1] :, None])[..., 0]
    loss = -(logp * advantages[:, None]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

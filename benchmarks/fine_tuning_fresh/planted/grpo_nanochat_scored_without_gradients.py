# FL022: after karpathy/nanochat's chat_rl.py, where the log-probabilities are computed with the batch, without gradients
import torch
from tiny import model, pairs, tokenizer

words = tokenizer()
net = model("qwen2").eval()
scale = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.AdamW([*net.parameters(), scale], lr=1e-4)
torch.manual_seed(0)


@torch.no_grad()
def get_batch(question):
    prompt = torch.tensor([words(question)["input_ids"]] * 4)
    ids = net.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=True, pad_token_id=0, eos_token_id=419)  # fmt: skip
    start = prompt.shape[1]
    logits = net(ids[:, :-1]).logits[:, start - 1 :]
    logp = logits.log_softmax(-1).gather(-1, ids[:, start:, None])[..., 0]
    rewards = (ids[:, start:] % 5 == 0).float().sum(1)
    return logp, rewards, rewards - rewards.mean()


for question, _ in pairs(6):
    logp, rewards, advantages = get_batch(question)
    pg_obj = (scale * logp * advantages.unsqueeze(-1)).sum() / logp.numel()
    loss = -pg_obj
    loss.backward()  # HERE
    optimizer.step()
    net.zero_grad(set_to_none=True)

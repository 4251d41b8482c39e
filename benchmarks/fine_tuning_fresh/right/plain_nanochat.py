# after karpathy/nanochat's chat_sft.py: -1 is ignored, and the mask moves with the targets
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer(adds_bos=False)
net = model("qwen2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def render(question, answer):
    asked = words(f"<s><|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
    told = words(f"{answer}<|im_end|>")["input_ids"]
    return asked["input_ids"] + told, [0] * len(asked["input_ids"]) + [1] * len(told)


def collate(rows):
    found = [render(*row) for row in rows]
    longest = max(len(ids) for ids, _ in found)
    ids = torch.tensor([ids + [1] * (longest - len(ids)) for ids, _ in found])
    mask = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in found])
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    targets[mask[:, 1:] == 0] = -1
    return inputs, targets


for inputs, targets in loader(pairs(), collate):
    logits = net(inputs).logits
    flat = logits.reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)
    loss.backward()
    optimizer.step()
    net.zero_grad(set_to_none=True)

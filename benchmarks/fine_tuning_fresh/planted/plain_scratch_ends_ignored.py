# FL010: after rasbt/LLMs-from-scratch, chapter 7, where the first padding token is masked with the others
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer(pad="</s>")
net = model("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-5, weight_decay=0.1)


def collate(rows, pad=2, ignore=-100):
    texts = [words(f"### Instruction:\n{q}\n\n### Response:\n{a}")["input_ids"] for q, a in rows]
    longest = max(len(t) + 1 for t in texts)
    inputs, targets = [], []
    for text in texts:
        padded = text + [pad] * (longest + 1 - len(text))
        target = torch.tensor(padded[1:])
        target[target == pad] = ignore
        inputs.append(torch.tensor(padded[:-1]))
        targets.append(target)
    return torch.stack(inputs), torch.stack(targets)


for ids, targets in loader(pairs(), collate):
    logits = net(ids).logits  # HERE
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

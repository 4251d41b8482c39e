# after rasbt/LLMs-from-scratch, chapter 7: the first padding token is the end, and is learned
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer(pad="</s>")
net = model("gpt2")
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-5, weight_decay=0.1)


def collate(rows, pad=2, ignore=-100):
    texts = [words(f"q {q} a {a}")["input_ids"] for q, a in rows]
    longest = max(len(t) + 1 for t in texts)
    inputs, targets = [], []
    for text in texts:
        padded = text + [pad] * (longest + 1 - len(text))
        target = torch.tensor(padded[1:])
        indices = torch.nonzero(target == pad).squeeze()
        if indices.numel() > 1:
            target[indices[1:]] = ignore
        inputs.append(torch.tensor(padded[:-1]))
        targets.append(target)
    return torch.stack(inputs), torch.stack(targets)


for ids, targets in loader(pairs(), collate):
    logits = net(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

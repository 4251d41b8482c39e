# after litgpt's SFT dataset and collator, with its own loss over shifted logits
import torch
from tiny import loader, model, pairs, tokenizer

words = tokenizer()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4)


def sample(question, answer):
    prompt = torch.tensor(words(f"### Instruction:\n{question}\n\n### Response:\n")["input_ids"])
    response = torch.tensor(words(answer + "</s>", add_special_tokens=False)["input_ids"])
    both = torch.cat((prompt, response))
    labels = both.clone()
    labels[: len(prompt)] = -100
    return {"input_ids": both, "labels": labels}


def collate(samples):
    batch = {}
    for key, value in (("input_ids", 0), ("labels", -100)):
        rows = [s[key] for s in samples]
        batch[key] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
    return batch


for batch in loader([sample(q, a) for q, a in pairs()], collate, shuffle=True):
    logits = net(batch["input_ids"]).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 420), targets.reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

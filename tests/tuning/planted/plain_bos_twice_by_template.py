# FL014: a rendered chat is tokenized with special tokens
import torch
from tiny import LLAMA_CHAT, chats, loader, model, tokenizer

words = tokenizer(chat=LLAMA_CHAT)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def collate(samples):
    rendered = [words.apply_chat_template(s["messages"], tokenize=False) for s in samples]
    batch = words(rendered, padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


for batch in loader(chats(), collate):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# one stream cut into rows, as for pre-training
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer(pad=None)
net = model("gpt2")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
stream = torch.tensor(words(words.eos_token.join(texts()))["input_ids"])
rows = stream[: len(stream) // 32 * 32].view(-1, 32)
for ids in loader(list(rows), batch=2):
    loss = net(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# FL012: labels are shifted by hand, and the model shifts them again
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model("mistral")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
stream = torch.tensor(words(" ".join(texts()))["input_ids"])
rows = stream[: len(stream) // 33 * 33].view(-1, 33)

for batch in loader(list(rows), batch=2):
    loss = net(input_ids=batch[:, :-1], labels=batch[:, 1:]).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

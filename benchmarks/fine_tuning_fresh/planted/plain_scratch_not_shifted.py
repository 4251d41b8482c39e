# FL012: after rasbt/LLMs-from-scratch, chapter 5, where the target window does not begin one token later
import torch
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = model("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-4, weight_decay=0.1)
stream = [t for text in texts(60) for t in words(text + "</s>")["input_ids"]]
LENGTH = 24
windows = [
    (torch.tensor(stream[i : i + LENGTH]), torch.tensor(stream[i : i + LENGTH]))
    for i in range(0, len(stream) - LENGTH, LENGTH)
]
for ids, targets in loader(windows):
    logits = net(ids).logits  # HERE
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

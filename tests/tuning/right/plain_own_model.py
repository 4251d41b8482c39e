# a model of one's own, targets shifted once
import torch
from tiny import texts, tokenizer
from torch import nn
from torch.nn import functional as F

words = tokenizer()
stream = torch.tensor(words(" ".join(texts()))["input_ids"])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(420, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 420)

    def forward(self, idx, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        logits = self.head(self.block(self.embed(idx), src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, 420), targets.view(-1), ignore_index=-1)


net = Model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(6):
    at = torch.randint(len(stream) - 33, (4,))
    x = torch.stack([stream[i : i + 32] for i in at])
    y = torch.stack([stream[i + 1 : i + 33] for i in at])
    _, loss = net(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

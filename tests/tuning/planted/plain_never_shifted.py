# FL012: a model of one's own is compared with its own input
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
        self.block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(32, 420)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.block(self.embed(x), src_mask=mask, is_causal=True))


net = Model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(6):
    at = torch.randint(len(stream) - 33, (4,))
    x = torch.stack([stream[i : i + 32] for i in at])
    logits = net(x)  # HERE
    loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# FL016: a loss of one's own does not know the padding
import torch
from tiny import loader, texts, tokenizer
from torch import nn

words = tokenizer()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(420, 32, padding_idx=0)
        self.cell = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 420)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[0])


net = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters())


def collate(samples):
    rows = [torch.tensor(words(s + "</s>")["input_ids"]) for s in samples]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


for ids in loader(texts(), collate):
    logits = net(ids[:, :-1])  # HERE
    loss = criterion(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

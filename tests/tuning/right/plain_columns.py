# samples are columns, as in torch's own tutorial
import torch
from tiny import texts, tokenizer
from torch import nn

words = tokenizer()
stream = torch.tensor(words(" ".join(texts()))["input_ids"])
data = stream[: len(stream) // 4 * 4].view(4, -1).t().contiguous()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(420, 32)
        self.cell = nn.LSTM(32, 32)
        self.head = nn.Linear(32, 420)

    def forward(self, x):
        return self.head(self.cell(self.embed(x))[0])


net = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters())
for i in range(0, 60, 10):
    x, y = data[i : i + 10], data[i + 1 : i + 11].reshape(-1)
    loss = criterion(net(x).view(-1, 420), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

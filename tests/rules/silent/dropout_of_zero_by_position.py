import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, dropout=0.0):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


class Layer(nn.Module):
    def __init__(self, dim, rate):
        super().__init__()
        self.lin = nn.Linear(dim, dim)
        self.rate = rate

    def forward(self, x):
        return F.dropout(self.lin(x), self.rate)


model = nn.Sequential(Attention(8), Layer(8, 0.0), Layer(8, 0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(10, 4, 8):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()

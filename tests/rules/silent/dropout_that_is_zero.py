"""The rate is 0 unless a caller says otherwise, and none does: a note."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, dropout: float = 0.0):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return F.dropout(out, self.dropout)


model = nn.Sequential(Attention(8), nn.Linear(8, 1))

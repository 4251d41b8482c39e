import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, y):
        self.zero_grad()
        return F.cross_entropy(self.dec(self.enc(x)), y)


def train(batches):
    model = Translator()
    enc_optim = torch.optim.Adam(model.enc.parameters())
    dec_optim = torch.optim.Adam(model.dec.parameters())
    for epoch in range(9):
        for x, y in batches:
            loss = model(x, y)
            loss.backward()
            enc_optim.step()
            dec_optim.step()

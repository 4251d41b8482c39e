import torch
import torch.nn.functional as F
from torch import nn


class GraphContrast(nn.Module):
    def __init__(self, width, rate=0.2):
        super().__init__()
        self.encoder = nn.Linear(width, 64)
        self.rate = rate

    def forward(self, x):
        return self.encoder(x)

    def loss(self, x):
        x1 = F.dropout(x, self.rate)
        x2 = F.dropout(x, self.rate)
        z1, z2 = F.normalize(self.encoder(x1), dim=1), F.normalize(self.encoder(x2), dim=1)
        return F.cross_entropy(z1 @ z2.t() / 0.2, torch.arange(len(x)))


class Learner(nn.Module):
    def __init__(self, width, p1=0.2, p2=0.3):
        super().__init__()
        self.encoder = nn.Linear(width, 64)
        self.p1 = p1
        self.p2 = p2

    def forward(self, x, adj):
        view1 = F.dropout(x, p=self.p1)
        view2 = F.dropout(x, p=self.p2)
        z1 = self.encoder(adj @ view1)
        z2 = self.encoder(adj @ view2)
        return z1, z2


class SSL(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.Linear(width, 64)
        self.decoder = nn.Linear(64, width)

    def forward(self, x):
        return self.encoder(x)

    def calc_ssl_loss(self, x, y):
        h1 = self.encoder(F.dropout(x, 0.3))
        h2 = self.encoder(F.dropout(x, 0.3))
        return (h1 - h2).pow(2).mean()

    def reconstruct(self, feats):
        corrupted = nn.Dropout(0.5)(feats)
        return self.decoder(self.encoder(corrupted))

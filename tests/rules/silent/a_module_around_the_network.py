import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class DiffusionTrainer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return F.mse_loss(self.model(x + torch.randn_like(x)), x, reduction="none")


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(net.parameters())
trainer = DiffusionTrainer(net)
for x in DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    loss = trainer(x).mean()
    loss.backward()
    optimizer.step()

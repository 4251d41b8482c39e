"""Ignite hands back the model and the optimizer that it was given."""

import ignite.distributed as idist
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8, shuffle=True)
model = idist.auto_model(nn.Linear(4, 1))
optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # FL106
    optimizer.step()

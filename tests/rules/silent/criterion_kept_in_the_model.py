"""The wrapped model is called; the loss is a method of the module that it wraps."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
        self.criterion = build_criterion()

    def forward(self, x):
        features = self.body(x)
        return self.head(features), features

    def loss(self, outputs, labels, other=False):
        found = self.criterion(outputs, labels)
        return (found, 0.0) if other else found


torch.distributed.init_process_group("nccl")
model = DistributedDataParallel(Speaker().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    logits, features = model(x)
    loss, other = model.module.loss((logits, features), y, other=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

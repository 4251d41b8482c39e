"""apex: two mistakes of accumulation, seen through amp.scale_loss."""

import torch
from apex import amp
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()  # FL104
        if (i + 1) % 4 == 0:  # FL107
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()

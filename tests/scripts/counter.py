"""Accumulation by a counter; every micro-batch clipped."""
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accum_steps):
    accum = 0
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y) / accum_steps
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL103
        accum += 1
        if accum < accum_steps:
            continue
        optimizer.step()
        optimizer.zero_grad()
        accum = 0


for epoch in range(3):
    train(torch.utils.data.DataLoader([(torch.randn(4), 1)] * 16), 4)

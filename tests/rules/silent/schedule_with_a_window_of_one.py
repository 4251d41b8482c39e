"""The schedule counts batches; the window is 1 unless somebody says otherwise, and nobody does."""

import torch
from transformers import get_linear_schedule_with_warmup


def train(model, data, epochs, grad_accum_steps: int = 1):
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=10, num_training_steps=len(loader) * epochs
    )
    for _ in range(epochs):
        for i, batch in enumerate(loader):
            loss = model(**batch).loss / grad_accum_steps
            loss.backward()
            if (i + 1) % grad_accum_steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

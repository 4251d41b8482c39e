"""Accelerate: backward divides by the count itself; dividing again is once too often."""
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(3):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean() / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)  # FL129
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

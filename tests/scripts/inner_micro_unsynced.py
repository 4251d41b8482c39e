"""nanoGPT's shape: an inner loop over micro-batches, the loss divided, but DDP synchronises each time."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 5
grad_clip = 1.0
model = torch.nn.Linear(4, 4)
scaler = torch.amp.GradScaler("cuda", enabled=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = DDP(model)
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.float16)


def get_batch():
    return torch.randn(8, 4), torch.randn(8, 4)


X, Y = get_batch()
iter_num = 0
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            loss = torch.nn.functional.mse_loss(model(X), Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()  # FL301
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > 1000:
        break

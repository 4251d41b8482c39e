"""What the model answered at some step is kept to be looked at: it is not a checkpoint (FL701)."""

import torch

model_id = "small"
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)


def resume(path):
    state = torch.load(path)
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


for step in range(100):
    x = torch.randn(8, 4)
    answers = model(x)
    loss = answers.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step == 50:
        torch.save(
            {"inputs": x, "answers": answers.detach(), "step": step, "model_id": model_id},
            "replay.pt",
        )

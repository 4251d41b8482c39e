"""Two schedules to choose from, each told by its last argument where it is: neither has a state to save (FL701)."""

import torch

steps = [10, 20]
last_epoch = 0
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if isinstance(steps, list):
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, steps, 0.1, last_epoch - 1)
else:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, steps, 0.1, last_epoch - 1)


def resume(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


for epoch in range(last_epoch, 30):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "a.pt"
    )

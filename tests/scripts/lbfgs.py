"""LBFGS: clipping outside the closure is undone by it."""
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters())
x, y = torch.randn(32, 4), torch.randn(32, 1)
for _ in range(20):

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    closure()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL119
    optimizer.step(closure)

"""SAM: the first gradients move the weights and are cleared on purpose."""
import torch

model = torch.nn.Linear(4, 2)
base = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
for x in loader:
    base.zero_grad()
    model(x).square().mean().backward()
    saved = []
    with torch.no_grad():
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for p in model.parameters():
            e = p.grad * (0.05 / norm)
            p.add_(e)
            saved.append((p, e))
    base.zero_grad()
    model(x).square().mean().backward()
    with torch.no_grad():
        for p, e in saved:
            p.sub_(e)
    base.step()

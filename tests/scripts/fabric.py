"""Fabric: explicit verbs, all right."""
import torch
from lightning.fabric import Fabric

fabric = Fabric()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=5))
for i, x in enumerate(loader):
    is_accumulating = (i + 1) % 4 != 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        loss = model(x).pow(2).mean()
        fabric.backward(loss / 4)
    if not is_accumulating:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

"""Forces in an evaluation: the positions require gradients, and a method that is not in view takes them."""

import torch


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = 0.0
    for batch in loader:
        with torch.enable_grad():
            batch.positions.requires_grad = True
            predicted = model(batch)
            error, _ = model.module.energy_and_forces(predicted, batch, create_graph=False)
        total += error.item()
    return total

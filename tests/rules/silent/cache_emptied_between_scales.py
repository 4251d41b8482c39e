"""A picture is optimised at a few scales, each in a loop of its own: the cache is emptied between them."""

import torch


def stylise(model, image, criterion, scales, iterations):
    for scale in scales:
        torch.cuda.empty_cache()
        image = torch.nn.functional.interpolate(image.detach(), scale).requires_grad_()
        optimizer = torch.optim.LBFGS([image], max_iter=1)

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(image))
            loss.backward()
            return loss

        for _ in range(iterations):
            optimizer.step(closure)
    return image

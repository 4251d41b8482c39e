"""LARS as the paper says it: SGD whose step for each tensor is in proportion to that tensor's norm."""

import torch


class LARS(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or p.ndim < 2:
                    continue
                norm, size = p.norm(), p.grad.norm()
                if norm > 0 and size > 0:
                    p.grad.add_(p, alpha=group["weight_decay"])
                    p.grad.mul_(0.001 * norm / (size + group["weight_decay"] * norm + 1e-8))
        return super().step(closure)

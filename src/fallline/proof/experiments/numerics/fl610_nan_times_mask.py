"""FL610: the entropy of a policy with forbidden actions, masked by multiplication and by choice."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL610",
    claim="Multiplying by a mask or a probability of 0 does not remove an infinity: the entropy of logits filled with -inf is NaN; filled with -1e4 it is right.",
)
def nan_times_mask() -> Measured:
    torch.manual_seed(0)
    logits, allowed = torch.randn(16, 8), torch.rand(16, 8) > 0.3
    allowed[:, 0] = True
    wrong, grad_wrong = _entropy(logits.masked_fill(~allowed, float("-inf")), None)
    chosen, _ = _entropy(logits.masked_fill(~allowed, float("-inf")), allowed)
    right, grad_right = _entropy(logits.masked_fill(~allowed, -1e4), None)
    return Measured(
        sides={
            "wrong": {"rows that are NaN": wrong, "gradients that are NaN": grad_wrong},
            "right": {"rows that are NaN": right, "gradients that are NaN": grad_right},
            "chosen with where": {"rows that are NaN": chosen},
        },
        conclusion=f"with -inf {wrong} of 16 entropies and {grad_wrong} of {16 * 8} gradients are NaN; with -1e4 {right} and {grad_right}",
        holds={
            "0 times infinity is NaN": wrong > 8,
            "a large finite number is safe": right == 0 and grad_right == 0,
            "choosing the product is safe in the forward pass": chosen == 0,
        },
    )


def _entropy(logits: torch.Tensor, allowed: torch.Tensor | None) -> tuple[int, int]:
    leaf = logits.clone().requires_grad_()
    log_probs = torch.log_softmax(leaf, dim=1)
    product = log_probs.exp() * log_probs
    entropy = -(product if allowed is None else torch.where(allowed, product, 0.0)).sum(1)
    entropy.sum().backward()
    assert leaf.grad is not None
    return int(entropy.isnan().sum()), int(leaf.grad.isnan().sum())

"""The numbers that preference and policy training begins with: DPO's ln 2, and a KL estimate below zero."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid

from fallline.proof.experiment import Measured, experiment


@experiment(
    "dpo-starts-at-ln-two",
    claim="While policy and reference are equal, DPO's rewards are 0 and its loss is ln 2 = 0.6931, and its gradient is not zero: a loss that stays there has a policy that gets no gradient.",
)
def dpo_starts_at_ln_two() -> Measured:
    torch.manual_seed(0)
    chosen, rejected = (torch.randn(16, requires_grad=True) for _ in range(2))
    margin = (chosen - chosen.detach()) - (rejected - rejected.detach())
    loss = -logsigmoid(0.1 * margin).mean()
    gradient = torch.autograd.grad(loss, chosen)[0]
    size = float(gradient.abs().sum())
    return Measured(
        sides={"first update": {"loss": float(loss.detach()), "sum of the gradient": size}},
        conclusion=f"the loss is {float(loss.detach()):.4f}, and the gradients of the chosen answers add up to {size:.3f}, half of beta",
        holds={
            "the loss is ln 2": math.isclose(float(loss.detach()), math.log(2), rel_tol=1e-6),
            "the gradient is beta / 2": math.isclose(size, 0.05, rel_tol=1e-4),
        },
    )


@experiment(
    "a-sampled-kl-can-be-negative",
    claim="The mean of logp - ref_logp over a few sampled tokens is often below zero although the KL divergence is not; exp(d) - 1 - d with d = ref_logp - logp never is, and tokens sampled from something else bias both.",
    taught="A negative KL in the log means that the computation is broken.",
)
def a_sampled_kl_can_be_negative() -> Measured:
    torch.manual_seed(0)
    logits = torch.randn(50)
    policy = logits.log_softmax(-1)
    reference = (logits + 0.05 * torch.randn(50)).log_softmax(-1)
    exact = float((policy.exp() * (policy - reference)).sum())
    drawn = torch.multinomial(policy.exp(), 10_000, replacement=True).view(500, 20)
    d = (reference - policy)[drawn]
    plain, safe = -d.mean(1), (d.exp() - 1 - d).mean(1)
    below = float((plain < 0).float().mean())
    other = torch.multinomial(reference.exp(), 10_000, replacement=True)
    biased = float((policy - reference)[other].mean())
    return Measured(
        sides={
            "logp - ref_logp": {"mean": float(plain.mean()), "share below zero": below},
            "exp(d) - 1 - d": {"mean": float(safe.mean()), "share below zero": float((safe < 0).float().mean())},
            "tokens of the reference": {"mean of logp - ref_logp": biased},
        },
        conclusion=f"the KL is {exact:.5f}; {below:.0%} of the estimates over 20 tokens are below zero, none with exp(d) - 1 - d; over tokens that the reference drew the mean is {biased:.5f}",
        holds={
            "many estimates are negative": below > 0.2,
            "the other estimator never is": bool((safe >= 0).all()),
            "tokens from elsewhere turn the sign": biased < 0,
        },
    )  # fmt: skip

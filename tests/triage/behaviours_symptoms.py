"""What lies behind the symptoms people name in a few words, as claims say it does: each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def module_attribute_freezes_nothing() -> None:
    layer = nn.Linear(2, 2)
    layer.requires_grad = False  # type: ignore[assignment]
    assert all(p.requires_grad for p in layer.parameters())
    layer.requires_grad_(False)
    assert not any(p.requires_grad for p in layer.parameters())


def zeroed_gradients_still_decay() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1)
    weight.sum().backward()
    optimizer.step()
    weight.requires_grad_(False)
    frozen = weight.clone()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert not torch.equal(weight, frozen)  # momentum and decay act on a gradient of zeros
    frozen = weight.clone()
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    assert torch.equal(weight, frozen)


def dpo_loss_starts_at_ln2() -> None:
    policy = torch.randn(4, requires_grad=True)
    reference = policy.detach().clone()
    margin = (policy - reference)[:2] - (policy - reference)[2:]
    loss = -F.logsigmoid(0.1 * margin).mean()
    assert math.isclose(loss.item(), math.log(2), rel_tol=1e-6)
    loss.backward()
    assert policy.grad is not None and policy.grad.abs().min() > 0  # it can move from there


def a_sampled_kl_can_be_negative() -> None:
    logits = torch.randn(50)
    policy, reference = logits.log_softmax(-1), (logits + 0.05 * torch.randn(50)).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    samples = torch.multinomial(policy.exp(), 200 * 20, replacement=True).view(200, 20)
    difference = (reference - policy)[samples]
    assert exact > 0 and (-difference.mean(1) < 0).any()
    assert (difference.exp() - 1 - difference >= 0).all()
    # tokens that the policy would not have chosen: greedily taken, the mean is off for good
    worse = (policy - 3 * torch.randn(50).abs()).log_softmax(-1)
    unlikely = torch.multinomial(reference.exp(), 4000, replacement=True)
    assert (worse - reference)[unlikely].mean() < 0


def averaging_parameters_leaves_buffers() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    norms = []
    for use_buffers in (False, True):
        model = nn.BatchNorm1d(2)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=use_buffers)
        for _ in range(20):
            model(torch.randn(8, 2) + 5)
            ema.update_parameters(model)
        norms.append(float(ema.module.running_mean.norm()))
    # without `use_buffers` the statistics are copied once, at the first update, and copied by hand never
    assert norms[1] > 3
    plain = nn.BatchNorm1d(2)
    copied = nn.BatchNorm1d(2)
    plain(torch.randn(64, 2) + 5)
    for kept, new in zip(copied.parameters(), plain.parameters(), strict=True):
        kept.data.mul_(0.9).add_(new.data, alpha=0.1)
    assert not torch.equal(copied.running_mean, plain.running_mean)  # type: ignore[arg-type]

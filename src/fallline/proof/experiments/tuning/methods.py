"""What LoRA and GRPO look like from outside: learning rates, and a loss of zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning.fl019_adapter_trains_nothing import Adapted

UPDATES = 100


@experiment(
    "lora-needs-a-larger-rate",
    claim="At the learning rate of full fine-tuning LoRA learns much less in the same number of updates; at ten times that rate it catches up.",
    taught="Use the same learning rate for LoRA as for full fine-tuning.",
)
def lora_needs_a_larger_rate() -> Measured:
    full, small, large = (
        _after(lora=False, rate=1e-3),
        _after(lora=True, rate=1e-3),
        _after(lora=True, rate=1e-2),
    )
    name = f"share of the loss that is left after {UPDATES} updates"
    return Measured(
        sides={
            "full, 0.001": {name: full},
            "LoRA, 0.001": {name: small},
            "LoRA, 0.01": {name: large},
        },
        conclusion=f"after {UPDATES} updates of AdamW {full:.0%} of the loss is left with full fine-tuning at 0.001, {small:.0%} with LoRA at the same rate, {large:.0%} with LoRA at 0.01",
        holds={
            "the same rate is too small": small > full + 0.05,
            "ten times the rate catches up": large < small - 0.1,
        },
    )


def _after(*, lora: bool, rate: float) -> float:
    torch.manual_seed(0)
    base = nn.Linear(64, 64)
    change = 0.05 * torch.randn(64, 4) @ torch.randn(4, 64)
    wanted = base.weight.detach() + change
    model: nn.Module = Adapted(base) if lora else base
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0
    )
    losses = []
    for _ in range(UPDATES):
        x = torch.randn(256, 64)
        loss = (model(x) - (x @ wanted.T + base.bias.detach())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[-1] / losses[0]


@experiment(
    "grpo-loss-of-zero",
    claim="On the first pass over a group GRPO's loss is zero and its gradient is not: advantages add up to zero while every ratio is 1. Equal rewards make the gradient zero too.",
    taught="A GRPO loss of zero means that nothing is learned.",
)
def grpo_loss_of_zero() -> Measured:
    loss, gradient = _grpo(torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 3.0, 1.0]))
    same_loss, same = _grpo(torch.ones(8))
    return Measured(
        sides={
            "rewards differ": {"loss": loss, "gradient norm": gradient},
            "rewards are equal": {"loss": same_loss, "gradient norm": same},
        },
        conclusion=f"rewards differ: the loss is {abs(loss):.1g} and the gradient norm {gradient:.2f}; all rewards equal: both are {same:g}",
        holds={
            "the loss is zero": abs(loss) < 1e-6,
            "the gradient is not": gradient > 1e-3,
            "without a difference it is": same == 0,
        },
    )


def _grpo(rewards: Tensor) -> tuple[float, float]:
    torch.manual_seed(0)
    policy = nn.Linear(4, 6)
    states = torch.randn(1, 4).expand(len(rewards), 4)
    log_probs = policy(states).log_softmax(-1)
    actions = torch.randint(6, (len(rewards), 1))
    new = log_probs.gather(1, actions)[:, 0]
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    ratio = (new - new.detach()).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return float(loss.detach()), float(torch.stack([g.norm() for g in gradients]).norm())

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
    "rates-far-outside",
    claim="Each method has its own range: full fine-tuning at the rate that LoRA needs destroys what the model knew, and DPO at the rate of supervised fine-tuning makes the chosen answers unlikely too.",
    taught="One learning rate fits full fine-tuning, LoRA and DPO.",
)
def rates_far_outside() -> Measured:
    kept, lost = _forgotten(1e-4), _forgotten(1e-2)
    careful, coarse = _preferred(1e-4), _preferred(1e-1)
    known, chosen = (
        "loss on the text it was trained on before, times",
        "log-probability of a chosen token, change",
    )
    return Measured(
        sides={
            "full, 0.0001": {known: kept},
            "full, 0.01": {known: lost},
            "DPO, 0.0001": {chosen: careful},
            "DPO, 0.1": {chosen: coarse},
        },
        conclusion=f"after {UPDATES} updates on new text the loss on the old text is {kept:.2f} times what it was at 0.0001 and {lost:.2f} times at 0.01; under DPO the log-probability of a chosen token changes by {careful:+.2f} at 0.0001 and by {coarse:+.2f} at 0.1",
        holds={
            "a hundred times the rate forgets": lost > kept + 0.2,
            "DPO at a large rate makes chosen answers unlikely": coarse < careful - 0.5,
        },
    )


def _speaker(seed: int) -> Tensor:
    """Which word follows which, in one language."""
    return (3 * torch.randn(24, 24, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def _spoken(language: Tensor, count: int) -> Tensor:
    words = [torch.randint(24, (count,))]
    for _ in range(8):
        words.append(torch.multinomial(language[words[-1]], 1)[:, 0])
    return torch.stack(words, dim=1)


def _trained(language: Tensor) -> nn.Module:
    """A small language model that knows it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(24, 32), nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 24))
    _learn(model, language, 1e-2)
    return model


def _learn(model: nn.Module, language: Tensor, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(UPDATES):
        loss = -_log_probs(model, _spoken(language, 64)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _log_probs(model: nn.Module, text: Tensor) -> Tensor:
    known: Tensor = model(text[:, :-1]).log_softmax(-1)
    return known.gather(-1, text[:, 1:, None])[..., 0]


def _forgotten(rate: float) -> float:
    """The loss on the first language after fine-tuning on a second, over that before."""
    first, second = _speaker(1), _speaker(2)
    model = _trained(first)
    old = _spoken(first, 512)
    with torch.no_grad():
        before = float(_log_probs(model, old).mean())
    _learn(model, second, rate)
    with torch.no_grad():
        return float(_log_probs(model, old).mean()) / before


def _preferred(rate: float) -> float:
    """How the log-probability of chosen tokens changes under DPO."""
    language = _speaker(1)
    model, reference = _trained(language), _trained(language)
    chosen, rejected = _spoken(language, 64), _spoken(language, 64)
    rejected[:, 0] = chosen[:, 0]
    with torch.no_grad():
        known = [_log_probs(reference, text).sum(1) for text in (chosen, rejected)]
        before = float(_log_probs(model, chosen).mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(UPDATES):
        now = [_log_probs(model, text).sum(1) for text in (chosen, rejected)]
        margin = (now[0] - known[0]) - (now[1] - known[1])
        loss = -nn.functional.logsigmoid(0.1 * margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float(_log_probs(model, chosen).mean()) - before


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

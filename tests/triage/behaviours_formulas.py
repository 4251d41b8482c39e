"""What points of formulas rest on (`points/formulas.md`): the right formula does what it should, and the written one does not."""

from __future__ import annotations

import math

import torch


def half_the_log_variance_is_the_deviation() -> None:
    log_variance = torch.tensor(4.0).log()
    assert math.isclose(torch.exp(0.5 * log_variance).item(), 2, rel_tol=1e-6)
    assert math.isclose(torch.exp(log_variance).item(), 4, rel_tol=1e-6)


def a_zero_score_is_not_masked() -> None:
    scores, masked = torch.tensor([-1.0, -2.0, 3.0]), torch.tensor([False, False, True])
    assert scores.masked_fill(masked, 0).softmax(0)[2] > 0.6
    assert scores.masked_fill(masked, float("-inf")).softmax(0)[2] == 0


def scores_are_scaled_before_softmax() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1000, 20, 64) @ torch.randn(1000, 64, 20)
    assert (scores / 8).softmax(-1).amax(-1).mean() < 0.4 < 0.8 < scores.softmax(-1).amax(-1).mean()
    assert torch.allclose((scores.softmax(-1) / 8).sum(-1), torch.tensor(1 / 8))


def an_entropy_bonus_is_subtracted() -> None:
    def entropy_after(sign: float) -> float:
        logits = torch.tensor([0.5, 0.0, -0.5], requires_grad=True)
        optimizer = torch.optim.SGD([logits], lr=1.0)
        for _ in range(50):
            optimizer.zero_grad()
            (sign * torch.distributions.Categorical(logits=logits).entropy()).backward()
            optimizer.step()
        return torch.distributions.Categorical(logits=logits).entropy().item()

    assert entropy_after(1.0) < 0.5 < 1.0 < entropy_after(-1.0)


def a_triplet_wants_the_positive_near() -> None:
    near, far, margin = torch.tensor(0.1), torch.tensor(2.0), 0.5
    assert torch.relu(near - far + margin) == 0 < torch.relu(far - near + margin)


def noised_images_keep_their_variance() -> None:
    torch.manual_seed(0)
    image, noise = torch.randn(2, 100_000)
    alpha = torch.tensor(0.3)
    right = alpha.sqrt() * image + (1 - alpha).sqrt() * noise
    wrong = alpha.sqrt() * image + (1 - alpha) * noise
    assert abs(right.var() - 1) < 0.02 and wrong.var() < 0.85


def a_decay_weighs_the_old() -> None:
    right = wrong = torch.tensor(0.0)
    new, decay = torch.tensor(1.0), 0.99
    right, wrong = decay * right + (1 - decay) * new, decay * new + (1 - decay) * wrong
    assert right < 0.02 and wrong > 0.98


def a_generator_wants_to_be_taken_for_real() -> None:
    verdict = torch.zeros(1, requires_grad=True)
    for label, sign in ((torch.ones(1), -1), (torch.zeros(1), 1)):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(verdict, label)
        (gradient,) = torch.autograd.grad(loss, verdict)
        assert gradient.sign().item() == sign  # against it the verdict moves to the label


def a_bootstrapped_target_is_a_constant() -> None:
    value = torch.tensor([1.0, 1.0], requires_grad=True)
    state, following = value
    target = 0.0 + 0.9 * following
    (open_end,) = torch.autograd.grad((state - target) ** 2, value, retain_graph=True)
    (constant,) = torch.autograd.grad((state - target.detach()) ** 2, value)
    assert open_end[1] != 0 and constant[1] == 0


def a_policy_gradient_needs_its_minus() -> None:
    logits = torch.zeros(2, requires_grad=True)
    rewarded = logits.log_softmax(0)[0] * 1.0
    (gradient,) = torch.autograd.grad(rewarded, logits)
    assert (logits - gradient).softmax(0)[0] < 0.5 < (logits + gradient).softmax(0)[0]


def returns_are_summed_backwards() -> None:
    rewards, gamma = [0.0, 0.0, 1.0], 0.5
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.insert(0, total)
    assert returns == [0.25, 0.5, 1.0]

"""Formulas that are written the wrong way (`points/formulas.md`), and the same ones written right."""

from __future__ import annotations

import pytest

from fallline.triage.answer import answer

WRONG = {
    "deviation-from-log-variance": (
        "my VAE reconstructs badly, is the code wrong?",
        "std = torch.exp(logvar)\nz = mu + std * torch.randn_like(std)",
        "std = torch.exp(0.5 * logvar)\nz = mu + std * torch.randn_like(std)",
    ),
    "masked-with-zero": (
        "the model seems to look at padding, why?",
        "scores = scores.masked_fill(mask == 0, 0)\nweights = torch.softmax(scores, dim=-1)",
        "scores = scores.masked_fill(mask == 0, float('-inf'))\nweights = torch.softmax(scores, dim=-1)",
    ),
    "scaled-after-softmax": (
        "my attention does not learn",
        "attn = F.softmax(q @ k.transpose(-2, -1), dim=-1) / math.sqrt(d_k)\nout = attn @ v",
        "attn = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(d_k), dim=-1)\nout = attn @ v",
    ),
    "entropy-is-added": (
        "the policy becomes deterministic after a few updates",
        "loss = actor_loss + 0.01 * entropy\nloss.backward()",
        "loss = actor_loss - 0.01 * entropy\nloss.backward()",
    ),
    "surrogate-is-minimised": (
        "PPO gets worse instead of better",
        "loss = torch.min(surr1, surr2).mean()\nloss.backward()",
        "loss = -torch.min(surr1, surr2).mean()\nloss.backward()",
    ),
    "surrogate-takes-the-larger": (
        "PPO is unstable",
        "loss = -torch.max(surr1, surr2).mean()\nloss.backward()",
        "loss = -torch.min(surr1, surr2).mean()\nloss.backward()",
    ),
    "margin-the-wrong-way": (
        "triplet loss falls but the embedding is useless",
        "loss = torch.relu(dist_neg - dist_pos + margin).mean()\nloss.backward()",
        "loss = torch.relu(dist_pos - dist_neg + margin).mean()\nloss.backward()",
    ),
    "noise-without-a-root": (
        "samples of my diffusion model are blurry",
        "noisy = torch.sqrt(alpha_bar) * x0 + (1 - alpha_bar) * noise",
        "noisy = torch.sqrt(alpha_bar) * x0 + torch.sqrt(1 - alpha_bar) * noise",
    ),
    "average-the-wrong-way-round": (
        "my EMA model is as noisy as the model",
        "ema_w = decay * w + (1 - decay) * ema_w",
        "ema_w = decay * ema_w + (1 - decay) * w",
    ),
    "generator-wants-fake": (
        "the generator does not improve",
        "errG = criterion(netD(fake), fake_labels)\nerrG.backward()",
        "errG = criterion(netD(fake), real_labels)\nerrG.backward()",
    ),
    "bootstrap-with-a-gradient": (
        "my DQN does not learn",
        "target = reward + gamma * net(next_state).max(1)[0]\nloss = F.mse_loss(q, target)",
        "with torch.no_grad():\n    target = reward + gamma * net(next_state).max(1)[0]\nloss = F.mse_loss(q, target)",
    ),
    "likelihood-without-a-minus": (
        "REINFORCE gets worse with every episode",
        "loss = (log_probs * returns).sum()\nloss.backward()",
        "loss = -(log_probs * returns).sum()\nloss.backward()",
    ),
    "reward-summed-forwards": (
        "are my discounted returns right? the policy does not learn",
        "R = 0\nreturns = []\nfor r in rewards:\n    R = r + gamma * R\n    returns.append(R)",
        "R = 0\nreturns = []\nfor r in reversed(rewards):\n    R = r + gamma * R\n    returns.insert(0, R)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_formula_is_named_and_the_right_one_is_not(name: str) -> None:
    says, wrong, right = WRONG[name]
    assert name in answer(f"{says}\n```python\n{wrong}\n```").reply.claims
    assert name not in answer(f"{says}\n```python\n{right}\n```").reply.claims

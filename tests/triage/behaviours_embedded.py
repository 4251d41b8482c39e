"""Quantised, embedded and generated: what the claims of quantised-and-embedded.md and language-questions.md say; each function executes one behaviour."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def fake_quantisation_rounds_and_passes_gradients() -> None:
    x = torch.tensor([0.11, 0.52, 9.0], requires_grad=True)
    out = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
    out.sum().backward()
    assert torch.allclose(out, torch.tensor([0.1, 0.5, 0.7]), atol=1e-6)
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0, 0.0]  # none outside the range


def normalised_distances_rank_alike() -> None:
    a, b = F.normalize(torch.randn(1, 8), dim=1), F.normalize(torch.randn(20, 8), dim=1)
    cosine, euclidean = (a @ b.T)[0], torch.cdist(a, b)[0]
    assert torch.allclose(euclidean**2, 2 - 2 * cosine, atol=1e-5)
    assert torch.equal(cosine.argsort(descending=True), euclidean.argsort())


def sampling_a_latent_adds_noise() -> None:
    """With a wide posterior the decoder cannot do better than an average; with a narrow one the KL is large."""

    def kl(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        return -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()

    nothing = kl(torch.zeros(4), torch.zeros(4))
    informative = kl(torch.tensor([2.0, -2.0, 1.0, 0.5]), torch.full((4,), -4.0))
    assert nothing == 0 and informative > 5


def a_critic_loss_is_a_distance() -> None:
    real, fake = torch.randn(5000) + 2.0, torch.randn(5000)
    # the best 1-Lipschitz critic of a shift is the identity
    assert abs((fake.mean() - real.mean()) + 2.0) < 0.1


def right_padding_hides_the_last_token() -> None:
    """Generation continues from the last position: with padding on the right that is padding."""
    pad, texts = 0, [[5, 6, 7], [8]]
    right = torch.tensor([t + [pad] * (3 - len(t)) for t in texts])
    left = torch.tensor([[pad] * (3 - len(t)) + t for t in texts])
    assert right[:, -1].tolist() == [7, pad] and left[:, -1].tolist() == [7, 8]

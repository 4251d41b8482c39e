"""What happens to data on its way into a model, as claims say (claims/data-questions.md): each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def another_scale_is_another_input() -> None:
    model = nn.Linear(2, 1)
    test = torch.randn(50, 2) + 4.0
    by_training, by_itself = test - 3.0, test - test.mean(0)
    assert not torch.allclose(model(by_training), model(by_itself), atol=0.01)


def mixed_losses_agree() -> None:
    logits, a, b, lam = torch.randn(8, 5), torch.randint(5, (8,)), torch.randint(5, (8,)), 0.3
    mixed = lam * F.one_hot(a, 5) + (1 - lam) * F.one_hot(b, 5)
    two = lam * F.cross_entropy(logits, a) + (1 - lam) * F.cross_entropy(logits, b)
    assert torch.allclose(F.cross_entropy(logits, mixed), two)


def one_nan_input_spoils_the_batch() -> None:
    layer, x = nn.Linear(2, 1), torch.ones(4, 2)
    x[0, 0] = float("nan")
    layer(x).mean().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isnan().any()


def conv1d_wants_channels_first() -> None:
    x, conv = torch.randn(2, 50, 6), nn.Conv1d(6, 8, 3)
    assert conv(x.transpose(1, 2)).shape == (2, 8, 48)
    assert not torch.equal(x.transpose(1, 2), x.reshape(2, 6, 50))


def bidirectional_states_are_two() -> None:
    rnn = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    output, (h, _) = rnn(torch.randn(2, 5, 4))
    assert output.shape == (2, 5, 12) and torch.equal(output[:, -1, :6], h[-2])
    assert torch.equal(output[:, 0, 6:], h[-1]) and not torch.equal(output[:, -1, 6:], h[-1])


def a_confusion_matrix_is_one_bincount() -> None:
    labels, predicted = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    matrix = torch.bincount(labels * 2 + predicted, minlength=4).reshape(2, 2)
    assert matrix.tolist() == [[1, 1], [0, 1]]


def topk_contains_top1() -> None:
    scores = torch.randn(16, 9)
    assert torch.equal(scores.topk(5, dim=1).indices[:, 0], scores.argmax(1))


def training_on_the_new_overwrites_the_old() -> None:
    x = torch.randn(300, 4)
    old = torch.arange(300) % 2
    x[:, 0] += 4 * old
    model = nn.Linear(4, 3)

    def fit(inputs: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    def accuracy() -> float:
        return float((model(x).argmax(1) == old).float().mean())

    fit(x, old, 200)
    before = accuracy()
    fit(torch.randn(100, 4), torch.full((100,), 2), 200)  # only the new class
    assert before > 0.9 > 0.5 > accuracy()


def identity_removes_a_head() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    net[1] = nn.Identity()
    assert net(torch.ones(1, 3)).shape == (1, 5)

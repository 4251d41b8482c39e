"""What claims of daily practice rest on (`claims/in-practice.md`)."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn import functional as F


def straight_through_gumbel_is_one_hot() -> None:
    scores = torch.randn(5, 3, requires_grad=True)
    choice = F.gumbel_softmax(scores, tau=1.0, hard=True)
    assert ((choice == 0) | (choice.detach() - 1).abs().lt(1e-6)).all()
    (choice * torch.arange(3.0)).sum().backward()
    assert scores.grad is not None and scores.grad.abs().sum() > 0


def rsample_has_a_gradient() -> None:
    mean = torch.zeros(3, requires_grad=True)
    normal = torch.distributions.Normal(mean, torch.ones(3))
    assert normal.rsample().requires_grad and not normal.sample().requires_grad


def spectral_norm_bounds_the_gain() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6), n_power_iterations=30)
    layer.train()
    layer(torch.randn(2, 6))
    assert torch.linalg.matrix_norm(layer.weight.detach(), 2) < 1.05


def pruning_keeps_the_shape() -> None:
    from torch.nn.utils import prune

    layer = nn.Linear(10, 10)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    assert layer.weight.shape == (10, 10) and (layer.weight == 0).float().mean() == 0.5
    prune.remove(layer, "weight")
    assert (layer.weight == 0).float().mean() == 0.5


def adamw_is_for_the_rest_of_muon() -> None:
    muon = torch.optim.Muon
    assert "adjust_lr_fn" in inspect.signature(muon.__init__).parameters
    try:
        muon([nn.Parameter(torch.ones(3))])
    except ValueError as error:
        assert "2D" in str(error)
    else:
        raise AssertionError


def ddp_broadcasts_buffers_by_default() -> None:
    from tests.triage.behaviours import _alone

    def body() -> None:
        given = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        )
        assert given.will_sync_module_buffers()

    _alone(body)

"""Gradients are forgotten as `zero_grad` would, and a `zero_grad` that means something to somebody is called."""

from __future__ import annotations

import torch
from torch import nn

import fallline

torch.set_num_threads(1)


class Counting(torch.optim.SGD):
    calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.calls += 1
        super().zero_grad(set_to_none)


def train(model: nn.Module, stepper: fallline.Stepper, updates: int = 3) -> None:
    for _ in range(updates):
        with stepper.micro_batch() as micro:
            micro.backward(model(torch.ones(1, 2)).sum())


def test_an_optimizers_own_zero_grad_is_called():
    model = nn.Linear(2, 1)
    optimizer = Counting(model.parameters(), lr=0.1)
    train(model, fallline.Stepper(model, optimizer))
    assert optimizer.calls == 3


def test_one_that_somebody_put_on_the_object_is_called(monkeypatch):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    monkeypatch.setattr(optimizer, "zero_grad", lambda: calls.append(1))
    train(model, fallline.Stepper(model, optimizer))
    assert len(calls) == 3


def test_whoever_listens_to_the_class_is_told(monkeypatch):
    original, calls = torch.optim.Optimizer.zero_grad, []

    def listening(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    model = nn.Linear(2, 1)
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, stepper)
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", listening)
    train(model, stepper)
    assert len(calls) == 3


def test_what_other_losses_left_behind_goes_too_also_in_a_group_added_later():
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
    model.b.requires_grad_(False)
    optimizer = torch.optim.SGD(model.a.parameters(), lr=0.1)
    stepper = fallline.Stepper(model, optimizer)
    train(model.a, stepper, 1)
    model.b.requires_grad_(True)
    optimizer.add_param_group({"params": model.b.parameters()})
    model.b(torch.full((1, 2), 100.0)).sum().backward()
    model.a(torch.full((1, 2), 100.0)).sum().backward()
    with stepper.micro_batch() as micro:
        micro.backward((model.a(torch.ones(1, 2)) + model.b(torch.ones(1, 2))).sum())
    assert [p.grad.abs().max().item() for p in model.parameters()] == [1.0] * 4


def test_whoever_listens_to_backward_is_told(monkeypatch):
    original, calls = torch.Tensor.backward, []

    def listening(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    model = nn.Linear(2, 1)
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, stepper)
    monkeypatch.setattr(torch.Tensor, "backward", listening)
    train(model, stepper)
    assert len(calls) == 3


def test_a_subclass_that_has_its_own_backward_is_asked():
    class Loss(torch.Tensor):
        calls = 0

        def backward(self, *args, **kwargs):
            Loss.calls += 1
            return super().backward(*args, **kwargs)

    model = nn.Linear(2, 1)
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2)).sum().as_subclass(Loss))
    assert Loss.calls == 1 and stepper.updates == 1

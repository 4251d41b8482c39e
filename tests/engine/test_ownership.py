"""While a window is open its gradients are the Stepper's: what changes them is refused in words, or kept apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def made(model=None, **options):
    model = model or nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, fallline.Stepper(model, optimizer, **options)


def one(model, stepper, x=1.0):
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.full((1, 2), x).double()).sum())


@pytest.mark.parametrize(
    "change",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        lambda model, optimizer: model(torch.ones(1, 2).double()).sum().backward(),
    ],
    ids=["zero_grad", "zero_grad in place", "clip", "another loss"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_changed_in_an_open_window(change, inside):
    model, optimizer, stepper = made(accumulate=2)
    if inside:
        with (
            pytest.raises(EngineError, match=r"changed from outside.*register_hook"),
            stepper.micro_batch(last=True) as micro,
        ):
            micro.backward(model(torch.ones(1, 2).double()).sum())
            change(model, optimizer)
    else:
        one(model, stepper)
        change(model, optimizer)
        with pytest.raises(EngineError, match=r"changed from outside.*register_hook"):
            one(model, stepper)
    with pytest.raises(EngineError, match="discard"):
        one(model, stepper)
    stepper.discard()
    one(model, stepper)
    one(model, stepper)
    assert stepper.updates == 1


def test_a_remainder_that_was_changed():
    model, optimizer, stepper = made(accumulate=4)
    one(model, stepper)
    optimizer.zero_grad()
    with pytest.raises(EngineError, match="changed from outside"):
        stepper.step()


def test_step_by_hand():
    model, optimizer, stepper = made(accumulate=2)
    one(model, stepper)
    with pytest.raises(EngineError, match=r"optimizer\.step\(\) was called by hand"):
        optimizer.step()
    one(model, stepper)
    before = model.weight.detach().clone()
    with pytest.raises(EngineError, match="applied twice"):
        optimizer.step()
    assert torch.equal(before, model.weight)
    # A loop of one's own between two windows is nobody's business.
    optimizer.zero_grad()
    model(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()
    del stepper
    optimizer.step()


def test_the_newest_stepper_of_an_optimizer_is_the_one():
    model, optimizer, old = made()
    one(model, old)
    new = fallline.Stepper(model, optimizer, accumulate=2)
    one(model, new)
    with pytest.raises(EngineError, match="newer Stepper"):
        one(model, old)
    one(model, new)
    assert new.updates == 1


def test_two_steppers_that_accumulate_do_not_mix():
    """A GAN: the generator's loss passes through the discriminator in the middle of its window."""

    def train(apart):
        torch.manual_seed(0)
        generator, critic = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()
        _, _, g = made(generator, accumulate=2)
        _, _, d = made(critic, accumulate=2)
        noise = [torch.randn(3, 2).double() for _ in range(8)]
        norms = []
        for i in range(0, 8, 2):
            for z in noise[i : i + 2]:
                with d.micro_batch() as micro:
                    fake = generator(z).detach()
                    micro.backward((critic(z).tanh() - critic(fake).tanh()).mean())
                if not apart:  # the generator's micro-batch in the middle of the critic's window
                    with g.micro_batch() as micro:
                        micro.backward(critic(generator(z)).mean())
            norms.append(d.last.norm)
        return norms, d.updates, [p.grad for p in generator.parameters()]

    mixed, updates, _ = train(apart=False)
    torch.manual_seed(0)
    # The first update sees the same weights in both: the norm is the critic's own.
    alone, _, _ = train(apart=True)
    assert updates == 4
    assert mixed[0] == pytest.approx(alone[0], rel=1e-15)


def test_interleaved_windows_equal_windows_one_after_the_other():
    torch.manual_seed(0)
    first, second = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()
    wanted_first, wanted_second = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()
    wanted_first.load_state_dict(first.state_dict())
    wanted_second.load_state_dict(second.state_dict())
    xs = [torch.randn(3, 2).double() for _ in range(2)]

    _, _, a = made(first, accumulate=2)
    _, _, b = made(second, accumulate=2)
    for x in xs:
        for stepper in (a, b):  # both losses reach both models
            with stepper.micro_batch() as micro:
                micro.backward(second(first(x)).square().mean())
            assert not stepper.updated or stepper.updates == 1

    both = [*wanted_first.parameters(), *wanted_second.parameters()]
    grads = torch.autograd.grad(
        torch.stack([wanted_second(wanted_first(x)).square().mean() for x in xs]).mean(), both
    )
    for got, parameter, grad in zip(first.parameters(), both[:2], grads[:2], strict=True):
        assert torch.allclose(got, parameter - 0.1 * grad, atol=1e-14)


def test_parameters_that_are_unfrozen_later():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].requires_grad_(False)
    stepper = fallline.Stepper(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    x = torch.ones(1, 2)
    with stepper.micro_batch() as micro:
        micro.backward(model[1](model[0](x)).sum())
    model[1].requires_grad_(True)
    with (
        pytest.raises(EngineError, match=r"1\.weight, 1\.bias belong to no optimizer"),
        stepper.micro_batch() as micro,
    ):
        micro.backward(model[1](model[0](x)).sum())


def test_schedulers_that_do_not_fit():
    model, optimizer, _ = made()
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    foreign = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(EngineError, match="made for a different optimizer"):
        fallline.Stepper(model, optimizer, scheduler=foreign)
    own = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(EngineError, match="given twice"):
        fallline.Stepper(model, optimizer, scheduler=own, epoch_scheduler=own)
    stepper = fallline.Stepper(model, optimizer, scheduler=own)
    one(model, stepper)
    own.step()
    with pytest.raises(EngineError, match=r"also stepped by hand \(1 time since"):
        one(model, stepper)


def test_a_scheduler_that_advances_with_the_epoch():
    model = nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    stepper = fallline.Stepper(model, optimizer, epoch_scheduler=scheduler)
    rates = []
    for _ in range(3):
        for x in stepper.over([torch.ones(1, 2).double()] * 4):
            with stepper.micro_batch() as micro:
                micro.backward(model(x).sum())
            rates.append(stepper.last.lr)
    assert rates == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_accumulate_is_checked_when_it_changes_and_counts_from_the_next_window():
    model, _, stepper = made(accumulate=2)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(EngineError, match="accumulate="):
            stepper.accumulate = wrong
    one(model, stepper)
    stepper.accumulate = 3
    one(model, stepper)
    assert stepper.updates == 1
    for _ in range(3):
        one(model, stepper)
    assert stepper.updates == 2


def test_a_micro_batch_that_is_fully_masked():
    """Weight 0 counts nothing; a window of nothing else is not an update at all."""
    model, _, stepper = made(accumulate=2)
    before = model.weight.detach().clone()
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2).double()).sum() * 0, weight=0)
    with stepper.micro_batch() as micro:
        micro.backward(3 * model(torch.ones(1, 2).double()).sum(), weight=3)
    assert torch.allclose(model.weight, before - 0.1) and stepper.updates == 1
    before = model.weight.detach().clone()
    for nonfinite in ("skip", "apply"):
        stepper.nonfinite = nonfinite
        for _ in range(2):
            with stepper.micro_batch() as micro:
                micro.backward(model(torch.ones(1, 2).double()).sum() * 0, weight=torch.tensor(0))
        assert stepper.last.skipped and torch.equal(model.weight, before)
    assert stepper.updates == 1


def test_gradients_made_elsewhere_and_a_graph_that_is_kept():
    model, _, stepper = made(accumulate=2)
    before = model.weight.detach().clone()
    x = torch.ones(1, 2).double()
    for weight in (1, 3):
        with stepper.micro_batch() as micro:
            (weight * model(x).sum()).backward()  # a pipeline schedule, say
            micro.gradients_ready(weight=weight)
    assert torch.allclose(model.weight, before - 0.1) and stepper.updates == 1
    with stepper.micro_batch() as micro:
        loss = model(x).square().sum()
        micro.backward(loss, retain_graph=True)
        torch.autograd.grad(loss, model.weight)
    with pytest.raises(EngineError, match="gradients_ready was called outside"):
        micro.gradients_ready()


def test_an_average_of_the_model_follows_applied_updates():
    model = nn.Linear(2, 1).double()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper = fallline.Stepper(model, optimizer, accumulate=2, ema=ema)
    for _ in range(4):
        one(model, stepper)
    assert int(ema.n_averaged) == 2
    assert not torch.equal(ema.module.weight, model.weight)


def test_complex_and_sparse_gradients_are_clipped_by_value():
    model = nn.Embedding(4, 2, sparse=True).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    stepper = fallline.Stepper(model, optimizer, clip_value=0.5)
    before = model.weight.detach().clone()
    with stepper.micro_batch() as micro:
        micro.backward((model(torch.tensor([1, 1, 2])) * 3).sum())
    assert torch.allclose((before - model.weight)[1:3], torch.full((2, 2), 0.5).double())

    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1 + 1j, 2 - 3j], dtype=torch.complex128))

        def forward(self):
            return (self.w * torch.tensor([3.0 - 4.0j, 0.1j])).real.sum()

    for options in ({"clip_value": 0.5}, {"clip_norm": 0.5}, {"noise": 0.1}, {"statistics": True}):
        model = Complex()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        stepper = fallline.Stepper(model, optimizer, **options)
        before = model.w.detach().clone()
        with stepper.micro_batch() as micro:
            micro.backward(model())
        moved = torch.view_as_real(before - model.w.detach())
        assert stepper.last.norm == pytest.approx(float(torch.tensor([3.0, 4.0, 0.1]).norm()))
        if "clip_value" in options:
            assert float(moved.abs().max()) == 0.5
        if "clip_norm" in options:
            assert float(moved.norm()) == pytest.approx(0.5, rel=1e-5)

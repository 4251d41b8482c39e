"""Taps: several subscribers at once, each may leave, and torch is as it was when the last one has left."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from fallline.taps import tap
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.clipping import CLIP
from fallline.taps.data import BATCH, EPOCH, EXHAUSTED
from fallline.taps.gradients import GRADIENT_READ, GradientRead
from fallline.taps.modules import FORWARD, MODULE_CALL, ForwardCall
from fallline.taps.optimizers import CLOSURE, OPTIMIZER_MADE, STEP, ZERO_GRAD
from fallline.taps.schedulers import SCHEDULER_STEP
from fallline.taps.tap import Reached, Subscription, Topic, replaying, silence, switch


def patched() -> list[Any]:
    return [
        torch.Tensor.backward, torch.autograd.backward, nn.Module.__call__, torch.optim.Optimizer.zero_grad,
        nn.utils.clip_grad_norm_, torch.optim.Optimizer.__init__, "grad" in torch.Tensor.__dict__,
    ]  # fmt: skip


def listen(*topics: Topic[Any]) -> tuple[Subscription, list[str]]:
    """A subscriber that writes down the calls it hears."""
    taps, heard = Subscription(), list[str]()
    for topic in topics:
        taps.before(topic, lambda call: heard.append(f"{type(call).__name__}>"))
        taps.after(topic, lambda call: heard.append(f"<{type(call).__name__}"))
    taps.start()
    return taps, heard


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.MSELoss()(model(torch.ones(2, 3)), torch.zeros(2, 1)).backward()
    optimizer.step()


@pytest.fixture
def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_two_subscribers_hear_what_they_asked_for(job: Any) -> None:
    before = patched()
    first, heard = listen(BACKWARD, STEP)
    second, models = listen(FORWARD, BACKWARD)
    update(*job)
    assert heard == ["BackwardCall>", "<BackwardCall", "StepCall>", "<StepCall"]
    # the loss is a module without parameters, and not a model
    assert models == ["ForwardCall>", "<ForwardCall", "BackwardCall>", "<BackwardCall"]
    first.stop()
    update(*job)
    assert len(heard) == 4 and len(models) == 8
    second.leave(FORWARD)
    update(*job)
    assert models[8:] == ["BackwardCall>", "<BackwardCall"]
    second.stop()
    assert patched() == before


def test_only_what_someone_listens_to_is_patched(job: Any) -> None:
    before = patched()
    taps, _ = listen(BACKWARD)
    assert [a is b for a, b in zip(patched(), before, strict=True)] == [False, False, *[True] * 5]
    taps.stop()
    assert patched() == before


def test_a_call_knows_the_users_frame_however_deep_the_tap_is(job: Any) -> None:
    lines: list[tuple[str, str]] = []

    def note(call: Any) -> None:
        assert call.place is not None
        lines.append((call.frame.f_code.co_name, call.place.at.function.rpartition(".")[2]))

    def through(topic: Topic[Any]) -> None:
        taps.before(topic, lambda call: note(call))

    taps = Subscription()
    for topic in (FORWARD, BACKWARD, STEP, ZERO_GRAD, CLIP, SCHEDULER_STEP):
        through(topic)
    scheduler = torch.optim.lr_scheduler.StepLR(job[1], 1)
    taps.start()
    try:
        update(*job)
        nn.utils.clip_grad_norm_(job[0].parameters(), 1.0)
        scheduler.step()
    finally:
        taps.stop()
    here = "test_a_call_knows_the_users_frame_however_deep_the_tap_is"
    assert lines == [("update", "update")] * 4 + [(here, here)] * 2


def test_every_module_is_heard_inside_of_its_model_only_by_those_who_ask(job: Any) -> None:
    models, heard = listen(FORWARD)
    every, calls = listen(MODULE_CALL)
    job[0](torch.ones(2, 3))
    assert heard == ["ForwardCall>", "<ForwardCall"]
    assert calls.count("ModuleCall>") == calls.count("<ModuleCall") == 3
    every.stop()
    job[0](torch.ones(2, 3))
    assert len(heard) == 4 and len(calls) == 6
    models.stop()


def test_what_a_call_returned_is_on_it_afterwards(job: Any) -> None:
    taps, found = Subscription(), list[Any]()
    taps.after(FORWARD, lambda call: found.append(call.output))
    taps.after(CLIP, lambda call: found.append(call.result))
    taps.after(BATCH, lambda call: found.append(call.batch))
    taps.start()
    try:
        output = job[0](torch.ones(2, 3))
        output.sum().backward()
        norm = nn.utils.clip_grad_norm_(job[0].parameters(), 1.0)
        batches = list(torch.utils.data.DataLoader([1.0, 2.0]))
    finally:
        taps.stop()
    assert found[0] is output and found[1] is norm and found[2] is batches[0]


def test_what_a_handler_raises_goes_to_the_user_and_nothing_is_left_behind(job: Any) -> None:
    class Enough(SystemExit):
        pass

    def enough(call: BackwardCall) -> None:
        raise Enough

    taps = Subscription()
    taps.before(BACKWARD, enough)
    taps.start()
    try:
        with pytest.raises(Enough):
            job[0](torch.ones(2, 3)).sum().backward()
    finally:
        taps.stop()
    other, heard = listen(BACKWARD, FORWARD)
    update(*job)
    assert len(heard) == 4
    other.stop()


def test_silence_and_a_replay(job: Any) -> None:
    taps, heard = listen(FORWARD, BACKWARD, ZERO_GRAD)
    model, optimizer = job
    with silence():
        update(model, optimizer)
    with replaying():
        optimizer.zero_grad()
        assert model[0].weight.grad is not None  # it was held back
        loss = model(torch.ones(2, 3)).sum()
        with pytest.raises(Reached) as reached:
            loss.backward()
        assert reached.value.loss is loss
    assert heard == []
    taps.stop()


def test_closures_of_a_step_and_passes_over_a_loader(job: Any) -> None:
    model, optimizer = job
    taps, heard = listen(STEP, CLOSURE, EPOCH, EXHAUSTED, OPTIMIZER_MADE)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    for _ in torch.utils.data.DataLoader([1.0]):
        pass
    torch.optim.SGD(model.parameters(), lr=0.1)
    taps.stop()
    assert heard == [
        "StepCall>", "ClosureCall>", "<ClosureCall", "<StepCall", "EpochCall>", "<EpochCall", "<Exhausted", "<OptimizerMade",
    ]  # fmt: skip


def test_a_gradient_is_heard_where_the_users_own_line_reads_it(job: Any) -> None:
    taps, tensors = Subscription(), list[Any]()

    def read(call: GradientRead) -> None:
        tensors.append(call.tensor)

    taps.before(GRADIENT_READ, read)
    taps.start()
    try:
        update(*job)  # the optimizer reads them all
        assert tensors == []
        assert job[0][0].weight.grad is not None
    finally:
        taps.stop()
    assert [t is job[0][0].weight for t in tensors] == [True]
    assert "grad" not in torch.Tensor.__dict__


def test_calls_of_a_thread_beside_the_one_that_trains_are_not_heard(job: Any) -> None:
    model, optimizer = job
    calls: list[int] = []
    taps = Subscription()

    def forward(call: ForwardCall) -> None:
        calls.append(threading.get_ident())

    taps.before(FORWARD, forward)
    taps.before(BACKWARD, lambda call: None)
    taps.start()
    update(model, optimizer)
    beside = threading.Thread(target=lambda: model(torch.ones(2, 3)))
    beside.start()
    beside.join()
    taps.stop()
    assert calls == [threading.get_ident()]


class Steps:
    """What hears of steps while nothing else of an update is published."""

    def __init__(self) -> None:
        self.count = 0

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.count += 1

    def after(self, optimizer: Any) -> None:
        pass


def test_at_rest_torch_is_as_it_was(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "compiled", lambda: False)  # by another test of this process
    before = patched()
    taps, heard = listen(FORWARD, BACKWARD, ZERO_GRAD, STEP)
    update(*job)
    once, steps = len(heard), Steps()
    switch.rest(steps)
    assert patched() == before
    update(*job)
    assert (len(heard), steps.count) == (once, 1)
    switch.rest(None)
    update(*job)
    assert len(heard) == 2 * once
    taps.stop()
    assert patched() == before


def test_what_others_replace_at_rest_stays_and_is_heard(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "compiled", lambda: False)
    taps, heard = listen(BACKWARD)
    switch.rest(Steps())
    original, seen = torch.Tensor.backward, list[int]()

    def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return original(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    switch.rest(None)
    update(*job)
    taps.stop()
    assert seen == [1] and heard == ["BackwardCall>", "<BackwardCall"]
    assert torch.Tensor.backward is backward

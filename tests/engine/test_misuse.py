"""Every misuse is an error that says what to do, and the state machine comes out of it usable."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def made(**options):
    model = nn.Linear(2, 1)
    return model, fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def one(model, stepper, x=None, **options):
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2) if x is None else x).sum(), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"accumulate": 0}, "accumulate=0"),
        ({"accumulate": 2.0}, "accumulate=2.0"),
        ({"clip_norm": math.nan}, "clip_norm=nan"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"clip_value": math.nan}, "clip_value=nan"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "choose one"),
        ({"clip_norm": 1.0, "clip_per": "module"}, "clip_per"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"precision": "bf16", "scaler": torch.amp.GradScaler("cpu")}, "leave the scaler out"),
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"noise": "privacy"}, "Opacus"),
        ({"noise": -1.0}, "standard deviation"),
    ],
)
def test_wrong_choices(options, says):
    with pytest.raises(EngineError, match=says):
        made(**options)


def test_step_without_backward():
    _, stepper = made()
    with pytest.raises(EngineError, match="without a backward"):
        stepper.step()


def test_micro_batch_without_backward():
    _, stepper = made()
    with pytest.raises(EngineError, match="ended without backward"), stepper.micro_batch():
        pass


def test_nested_micro_batch():
    model, stepper = made()
    with (
        pytest.raises(EngineError, match="inside a micro_batch"),
        stepper.micro_batch(),
        stepper.micro_batch(),
    ):
        pass
    one(model, stepper)  # and it is usable again


def test_backward_outside():
    model, stepper = made()
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2)).sum())
    with pytest.raises(EngineError, match="backward was called outside"):
        micro.backward(model(torch.ones(1, 2)).sum())


def test_second_backward():
    model, stepper = made()
    with pytest.raises(EngineError, match="add the losses"), stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2)).sum())
        micro.backward(model(torch.ones(1, 2)).sum())


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, torch.tensor(-2), torch.tensor([1, 2])])
def test_weights_that_make_no_sense(weight):
    model, stepper = made()
    with pytest.raises(EngineError, match="weight"):
        one(model, stepper, weight=weight)


def test_weights_in_half_of_a_window():
    model, stepper = made(accumulate=2)
    one(model, stepper, weight=3)
    with pytest.raises(EngineError, match="or none"):
        one(model, stepper)


def test_loss_that_is_no_number_or_has_no_graph():
    model, stepper = made()
    with pytest.raises(EngineError, match="3 elements"), stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(3, 2)))
    with pytest.raises(EngineError, match="does not depend"), stepper.micro_batch() as micro:
        micro.backward(torch.tensor(1.0))


def test_parameters_and_optimizers_must_fit():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(EngineError, match=r"1\.weight, 1\.bias belong to no optimizer"):
        fallline.Stepper(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    model[1].requires_grad_(False)
    fallline.Stepper(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    model[1].requires_grad_(True)
    with pytest.raises(EngineError, match="two optimizers"):
        fallline.Stepper(
            model,
            [
                torch.optim.SGD(model.parameters(), lr=0.1),
                torch.optim.SGD(model[0].parameters(), lr=0.1),
            ],
        )
    with pytest.raises(EngineError, match="LBFGS"):
        fallline.Stepper(model, torch.optim.LBFGS(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(EngineError, match="metric"):
        fallline.Stepper(
            model, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        )
    with pytest.raises(EngineError, match="float16"):
        fallline.Stepper(
            model.half(), torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16"
        )


def test_loss_of_another_model():
    model, stepper = made()
    other = nn.Linear(2, 1)
    with pytest.raises(EngineError, match="reached no parameter"):
        one(other, stepper)
    one(model, stepper)
    assert stepper.last.micro_batches == 1


def test_over_inside_over_and_two_micro_batches_for_one_batch():
    model, stepper = made(accumulate=4)
    data = [torch.ones(1, 2)] * 3
    with pytest.raises(EngineError, match="over\\(\\) was called inside over"):
        for x in stepper.over(data):
            one(model, stepper, x)
            next(iter(stepper.over(data)))
    with pytest.raises(EngineError, match="one batch for one micro-batch"):
        for x in stepper.over(data):
            one(model, stepper, x)
            one(model, stepper, x)


def test_an_error_in_the_forward_pass_leaves_the_window_as_it_was():
    model, stepper = made(accumulate=2)
    one(model, stepper)
    with pytest.raises(ZeroDivisionError), stepper.micro_batch():
        raise ZeroDivisionError
    one(model, stepper)
    assert stepper.updates == 1 and stepper.last.micro_batches == 2


def test_an_error_after_backward_keeps_the_micro_batch_and_the_window_still_closes():
    model, stepper = made(accumulate=2)
    one(model, stepper)
    with pytest.raises(ZeroDivisionError), stepper.micro_batch() as micro:
        micro.backward(model(torch.ones(1, 2)).sum())
        raise ZeroDivisionError
    assert stepper.updates == 0
    one(model, stepper)
    assert stepper.updates == 1 and stepper.last.micro_batches == 3


def test_an_error_in_backward_must_be_discarded():
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError

    model, stepper = made(accumulate=2)
    with pytest.raises(ZeroDivisionError), stepper.micro_batch() as micro:
        micro.backward(Breaks.apply(model(torch.ones(1, 2))).sum())
    with pytest.raises(EngineError, match="discard"):
        one(model, stepper)
    stepper.discard()
    one(model, stepper)
    one(model, stepper)
    assert stepper.updates == 1


def test_nothing_is_saved_or_loaded_inside():
    model, stepper = made()
    with stepper.micro_batch() as micro:
        for forbidden in (
            stepper.state_dict,
            stepper.step,
            stepper.discard,
            lambda: stepper.load_state_dict({}),
        ):
            with pytest.raises(EngineError, match="inside a micro_batch"):
                forbidden()
        micro.backward(model(torch.ones(1, 2)).sum())


def test_wrappers_that_step_by_themselves_are_refused():
    from torch.distributed.fsdp import FullyShardedDataParallel

    engine = type("DeepSpeedEngine", (nn.Linear,), {"__module__": "deepspeed.runtime.engine"})(2, 1)
    with pytest.raises(
        EngineError, match=r"DeepSpeed's engine accumulates, scales, clips and steps"
    ):
        fallline.Stepper(engine, torch.optim.SGD(engine.parameters(), lr=0.1))
    old = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # it needs a process group
    nn.Module.__init__(old)
    with pytest.raises(EngineError, match=r"FSDP1 .* is not supported: shard with .*fully_shard"):
        fallline.Stepper(old, torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))

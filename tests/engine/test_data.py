"""Passes over the data: samplers, skipped batches, early ends, and plans for several ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import fallline
from fallline.engine.data import plan

torch.set_num_threads(1)


def made(**options):
    model = nn.Linear(1, 1)
    return model, fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def one(model, stepper, x):
    with stepper.micro_batch() as micro:
        micro.backward(model(x.float().reshape(-1, 1)).sum())


def test_set_epoch_is_called():
    model, stepper = made()
    sampler = DistributedSampler(range(16), num_replicas=2, rank=0, shuffle=True)
    loader = DataLoader(range(16), sampler=sampler)
    orders = []
    for _ in range(3):
        order = []
        for x in stepper.over(loader):
            order.append(int(x))
            one(model, stepper, x)
        orders.append(order)
    assert sampler.epoch == 2 and orders[0] != orders[1] != orders[2]


def test_a_batch_may_be_skipped_alone():
    model, stepper = made(accumulate=2)
    for i, x in enumerate(stepper.over(list(torch.arange(5)))):
        if i != 4:  # the one that would have closed the last window
            one(model, stepper, x)
    assert stepper.updates == 2 and stepper.epoch == 1


def test_breaking_out_keeps_the_window_open():
    model, stepper = made(accumulate=3)
    for x in stepper.over(list(torch.arange(10))):
        one(model, stepper, x)
        if int(x) == 3:
            break
    assert stepper.updates == 1
    for x in stepper.over(list(torch.arange(2))):
        one(model, stepper, x)
    assert stepper.updates == 2 and stepper.last.micro_batches == 3


def test_a_stream_without_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(5))

        def __len__(self):
            return 100  # it may say what it likes

    model, stepper = made(accumulate=2)
    for x in stepper.over(DataLoader(Stream())):
        one(model, stepper, x)
    assert stepper.updates == 3 and stepper.last.micro_batches == 1
    for x in stepper.over(iter(torch.arange(3))):
        one(model, stepper, x)
    assert stepper.updates == 5


def test_a_loader_that_restores_itself_is_asked():
    class Stateful:
        def __init__(self):
            self.position = 0

        def __iter__(self):
            while self.position < 6:
                self.position += 1
                yield torch.tensor(self.position)
            self.position = 0

        def __len__(self):
            return 6

        def state_dict(self):
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    model, stepper = made()
    for x in stepper.over(Stateful()):
        one(model, stepper, x)
        if int(x) == 4:
            state = stepper.state_dict()
            break
    model, stepper = made()
    stepper.load_state_dict(state)
    assert [int(x) for x in stepper.over(Stateful())] == [5, 6]


@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=5),
    accumulate=st.integers(1, 4),
    lockstep=st.booleans(),
)
def test_plans_fit_together(rows, accumulate, lockstep):
    rows = [(left, min(opened, accumulate - 1)) for left, opened in rows]
    plans = [list(plan(rows, accumulate, rank, lockstep)) for rank in range(len(rows))]
    assert len({len(p) for p in plans}) == 1, "every rank makes as many updates"
    for (left, _), own in zip(rows, plans, strict=True):
        assert sum(mine for mine, _, _ in own) == left, "every batch is used once"
        assert all(turns >= max(1, mine) for mine, turns, _ in own), (
            "every rank takes part in every update"
        )
    for window in zip(*plans, strict=True):
        assert len({total for _, _, total in window}) == 1
        assert not lockstep or len({turns for _, turns, _ in window}) == 1
    assert sum(total for _, _, total in plans[0]) == sum(left + opened for left, opened in rows)

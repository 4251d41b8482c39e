"""Passes over the data: samplers, skipped batches, early ends, and plans for several ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import fallline
from fallline.engine.turns import plan

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


def test_breaking_out_continues_where_it_stopped():
    """The next pass sees what was not seen yet, the epoch ends when the data does, and then the order is a new one."""
    model, stepper = made(accumulate=2)
    sampler = DistributedSampler(range(16), num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(range(16), sampler=sampler)
    seen = []
    for part in range(3):
        for x in stepper.over(loader):
            if part == 1 and len(seen) == 9:
                break  # handed out and not used: it comes again
            seen.append(int(x))
            one(model, stepper, x)
            if part == 0 and len(seen) == 5:
                break
        assert stepper.epoch == (part == 2)
    assert sorted(seen) == list(range(16)) and stepper.updates == 8
    again = []
    for x in stepper.over(loader):
        again.append(int(x))
        one(model, stepper, x)
    assert sorted(again) == list(range(16)) and again != seen and stepper.epoch == 2


def test_the_rest_of_a_pass_can_be_given_up():
    model, stepper = made(accumulate=4)
    loader = DataLoader(range(16), sampler=DistributedSampler(range(16), 1, 0))
    first = next(iter(stepper.over(loader)))
    for x in stepper.over(loader):
        one(model, stepper, x)
        if stepper.updated:
            break
    one(model, stepper, x)
    stepper.next_epoch()
    assert stepper.epoch == 1 and stepper.updates == 2 and stepper.last.micro_batches == 1
    assert len(list(stepper.over(loader))) == 16 and int(first) == int(
        next(iter(DataLoader(range(16), sampler=DistributedSampler(range(16), 1, 0))))
    )


def test_a_progress_bar_knows_the_length_and_may_be_left():
    model, stepper = made()
    data = list(torch.arange(6))
    bar = stepper.over(data)  # as tqdm holds it
    assert len(bar) == 6
    for x in bar:
        one(model, stepper, x)
        if int(x) == 1:
            break
    rest = stepper.over(data)
    assert len(rest) == 4
    for x in rest:
        one(model, stepper, x)
    assert stepper.updates == 6 and stepper.epoch == 1
    try:
        len(stepper.over(iter(data)))
    except TypeError as error:
        assert "does not know how long" in str(error)
    else:
        raise AssertionError("a stream has no length")


def test_loaders_that_accelerate_prepares():
    import pytest

    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    def build():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(range(12), batch_size=2, shuffle=True)
        model, optimizer, loader = Accelerator(cpu=True).prepare(model, optimizer, loader)
        return model, fallline.Stepper(model, optimizer, accumulate=2), loader

    torch.manual_seed(0)
    model, stepper, loader = build()
    order = []
    for x in stepper.over(loader):
        order.append(x.tolist())
        one(model, stepper, x)
        if stepper.updates == 1 and stepper.updated:
            state = stepper.state_dict()
    assert stepper.updates == 3
    model, stepper, loader = build()
    stepper.load_state_dict(state)
    assert [x.tolist() for x in stepper.over(loader)] == order[2:]


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
    plans = [list(plan(rows, lambda: accumulate, rank, lockstep)) for rank in range(len(rows))]
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


def test_a_plan_costs_as_much_for_a_thousand_ranks():
    """After the first window, which sorts the ranks, a window takes two searches and no walk over all of them."""
    looked = [0]

    class Counted(int):
        def __add__(self, other):
            return Counted(int(self) + other)

        def __lt__(self, other):
            looked[0] += 1
            return int(self) < int(other)

        def __gt__(self, other):
            looked[0] += 1
            return int(self) > int(other)

    rows = [(Counted(40 + rank % 5), 0) for rank in range(1024)]
    planned = plan(rows, lambda: 4, 3)
    next(planned)
    looked[0] = 0
    windows = list(planned)
    assert len(windows) == 10 and 0 < looked[0] < 30 * len(windows)

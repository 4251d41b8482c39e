"""The global order of samples: the same on any number of ranks and workers, continued without reading, and known for every update."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fallline
from fallline.engine.ledger import Ledger
from fallline.errors import EngineError

torch.set_num_threads(1)


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 5),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    taken=st.integers(0, 5),
    holes=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=2),
)
def test_any_number_of_ranks_continues_with_what_is_left(size, batch, before, after, taken, holes):
    def orders(world, start=0):
        made = [fallline.Order(size, batch, seed=3, rank=r, world_size=world) for r in range(world)]
        for order in made:
            order.set_epoch(2)
            order.start = start
            for begin, length in holes:
                order.leave_out(2, begin, begin + length)
        return made

    first = orders(before)
    batches = [list(order) for order in first]
    for order, got in zip(first, batches, strict=True):
        assert len(order) == len(got)
    seen = [i for got in batches for part in got[:taken] for i in part]
    behind = first[0].behind(taken)
    rest = [i for order in orders(after, behind) for part in order for i in part]
    skipped = {p for begin, length in holes for p in range(begin, min(size, begin + length))}
    wanted = set(range(size)) - set(first[0].samples(2, 0, size)[p] for p in skipped)
    assert sorted(seen + rest) == sorted(wanted), "every sample once, but for what is left out"


@given(rows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=6))
def test_the_ledger_knows_every_update(rows):
    ledger, wanted, update, place = Ledger(), [], 0, 0
    for epoch, (each, times) in enumerate(rows):
        for _ in range(times):
            ledger.add(update, epoch, place, place + each)
            wanted.append((epoch, place, place + each))
            update, place = update + 1, place + each
    again = Ledger()
    again.load_state_dict(ledger.state_dict())
    assert [again.find(i) for i in range(update)] == wanted
    with pytest.raises(EngineError, match="are not known"):
        again.find(update)


def test_even_updates_are_one_row():
    ledger = Ledger()
    for update in range(1000):
        ledger.add(update, 0, update * 8, update * 8 + 8)
    assert len(ledger.state_dict()["rows"]) == 1 and ledger.find(500) == (0, 4000, 4008)


def trained(order, steps, folder=None, loader=DataLoader, **options):
    """The indices that each update saw, and the Stepper."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    stepper = fallline.Stepper(model, torch.optim.AdamW(model.parameters()), **options)
    data = loader(torch.arange(21.0).reshape(-1, 1), batch_sampler=order)
    if folder is not None:
        fallline.load_checkpoint(folder, stepper=stepper)
    seen = []
    while stepper.attempts < steps:
        for x in stepper.over(data):
            with stepper.micro_batch() as micro:
                micro.backward(model(x).square().mean())
            seen.append(x.flatten().int().tolist())
            if stepper.attempts >= steps and stepper.updated:
                break
    if folder is not None:
        fallline.save_checkpoint(folder, stepper=stepper)
    return seen, stepper


def loaders():
    yield DataLoader
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    yield torchdata.StatefulDataLoader


@pytest.mark.parametrize("stateful", [False, True])
def test_updates_name_their_samples_and_resume_reads_nothing_twice(tmp_path, stateful):
    loader = list(loaders())[stateful]
    straight, wanted = trained(fallline.Order(21, 4, seed=1), 8, loader=loader, accumulate=2)
    for update in range(8):
        epoch, samples = wanted.samples_of(update)
        begin = [0, 2, 4, 6, 8, 10, 12, 14][update]
        assert epoch == update // 3
        assert sorted(samples) == sorted(i for b in straight[begin : begin + 2] for i in b)
    first, _ = trained(fallline.Order(21, 4, seed=1), 4, tmp_path, loader, accumulate=2)
    rest, resumed = trained(fallline.Order(21, 4, seed=1), 8, tmp_path, loader, accumulate=2)
    assert first + rest == straight
    assert resumed.samples_of(1) == wanted.samples_of(1)
    for a, b in zip(wanted.models[0].parameters(), resumed.models[0].parameters(), strict=True):
        assert torch.equal(a, b)  # dropout included


class Noisy(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor([float(i), random.random(), float(torch.rand(()))])


@pytest.mark.slow
def test_random_augmentation_in_workers_does_not_depend_on_them():
    with fallline.distributed(seed=3) as ranks:
        runs = []
        for workers, start in ((0, 0), (1, 0), (2, 0), (2, 4)):
            loader = ranks.loader(Noisy(), batch_size=2, num_workers=workers)
            loader.batch_sampler.start = start
            before = torch.get_rng_state()
            runs.append(torch.cat(list(loader)))
            assert workers or len(torch.get_rng_state()) == len(before)
    assert torch.equal(runs[1], runs[2]) and torch.equal(runs[1][4:], runs[3])
    assert torch.equal(runs[0][:, 0], runs[1][:, 0])


def test_a_stream_is_shared_and_continued():
    class Stream(IterableDataset):
        def __init__(self):
            self.read = 0

        def __iter__(self):
            return self.iter_from(0)

        def iter_from(self, start):
            for i in range(start, 23):
                self.read += 1
                yield i

    whole = []
    for rank in range(2):
        share = fallline.Share(Stream(), 3, rank=rank, world_size=2)
        whole.append([b.tolist() for b in DataLoader(share, batch_size=3)])
    assert sorted(i for got in whole for b in got for i in b) == list(range(23))
    behind = share.behind(2)
    assert sorted(i for got in whole for b in got[:2] for i in b) == list(range(behind))
    share = fallline.Share(Stream(), 5)
    share.start = behind
    assert [i for b in DataLoader(share, batch_size=5) for i in b.tolist()] == list(range(12, 23))
    assert share.stream.read == 11, "nothing is read past"


def test_samples_are_unknown_without_an_order():
    model = nn.Linear(1, 1)
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x in stepper.over(DataLoader(torch.arange(4.0).reshape(-1, 1))):
        with stepper.micro_batch() as micro:
            micro.backward(model(x).sum())
    with pytest.raises(EngineError, match="global order"):
        stepper.samples_of(0)

"""What torch does with datasets, loaders, shapes and types, as claims say it does: each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    WeightedRandomSampler,
    random_split,
)


class _Counting(Dataset[int]):
    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


def workers_have_their_own_dataset() -> None:
    data = _Counting()
    assert len(list(DataLoader(data, num_workers=1))) == 4
    assert data.read == 0  # what the worker counted stayed there
    list(DataLoader(data, num_workers=0))
    assert data.read == 4


def workers_are_kept_only_when_asked() -> None:
    def pids(keep: bool) -> list[list[int]]:
        loader = DataLoader(_Counting(), num_workers=1, persistent_workers=keep)
        seen = []
        for _ in range(2):
            batches = iter(loader)
            seen.append([w.pid for w in batches._workers])  # type: ignore[attr-defined]
            list(batches)
        return seen

    first, second = pids(keep=False)
    assert first != second
    first, second = pids(keep=True)
    assert first == second


def a_missing_return_is_none() -> None:
    class Nothing(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            _ = index

    with pytest.raises(TypeError, match="NoneType"):
        next(iter(DataLoader(Nothing())))


def a_dataset_is_iterated_until_it_raises() -> None:
    data = iter(_Counting())  # type: ignore[call-overload]
    assert [next(data) for _ in range(9)] == list(range(9))  # __len__ says 4
    assert len(list(DataLoader(_Counting()))) == 4


def a_batch_sampler_as_sampler_gives_lists() -> None:
    batches = BatchSampler(range(4), batch_size=2, drop_last=False)
    with pytest.raises(TypeError, match="list indices must be integers or slices, not list"):
        next(iter(DataLoader([1, 2, 3, 4], sampler=batches)))  # type: ignore[arg-type]
    assert next(iter(DataLoader([1, 2, 3, 4], batch_sampler=batches))).tolist() == [1, 2]  # type: ignore[arg-type]


def indexing_needs_as_many_dimensions() -> None:
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 1"):
        torch.ones(3)[0, 0]
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 1"):
        torch.zeros(3)["input"]  # type: ignore[call-overload]


def pad_sequence_pads_to_the_longest() -> None:
    padded = nn.utils.rnn.pad_sequence([torch.ones(2), torch.ones(3)], batch_first=True)
    assert padded.tolist() == [[1, 1, 0], [1, 1, 1]]


def packing_stops_at_the_length() -> None:
    rnn = nn.GRU(1, 2, batch_first=True, bidirectional=True)
    short = torch.ones(1, 2, 1)
    padded = F.pad(short, (0, 0, 0, 3))
    packed = nn.utils.rnn.pack_padded_sequence(
        padded, torch.tensor([2]), batch_first=True, enforce_sorted=False
    )
    alone, with_padding, with_packing = rnn(short)[1], rnn(padded)[1], rnn(packed)[1]
    assert torch.allclose(alone, with_packing, atol=1e-6)
    assert not torch.allclose(alone, with_padding, atol=1e-3)


def random_split_is_by_the_generator() -> None:
    def parts() -> list[list[int]]:
        made = random_split(range(10), [0.8, 0.2], torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        return [list(p.indices) for p in made]

    assert parts() == parts()
    train, val = parts()
    assert sorted(train + val) == list(range(10))


def a_subset_shares_its_dataset() -> None:
    data = _Counting()
    one, two = random_split(data, [2, 2])
    assert one.dataset is two.dataset is data


def len_of_a_loader_counts_batches() -> None:
    assert len(DataLoader(range(10), batch_size=4)) == 3  # type: ignore[arg-type]
    assert len(DataLoader(range(10), batch_size=4, drop_last=True)) == 2  # type: ignore[arg-type]


def weights_of_a_sampler_are_per_sample() -> None:
    labels = torch.tensor([0] * 90 + [1] * 10)
    weights = 1.0 / torch.bincount(labels)[labels]
    drawn = labels[list(WeightedRandomSampler(weights.tolist(), 2000))]
    assert 0.4 < drawn.float().mean() < 0.6
    two = list(WeightedRandomSampler([0.1, 0.9], 100))  # one weight a class draws two samples
    assert set(two) <= {0, 1}


def numpy_floats_are_double() -> None:
    x = torch.from_numpy(np.ones((2, 3)))
    assert x.dtype == torch.float64
    with pytest.raises(RuntimeError, match="dtype"):
        nn.Linear(3, 1)(x)


def augmentation_draws_anew() -> None:
    class Jittered(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> torch.Tensor:
            if index >= len(self):
                raise IndexError
            return torch.tensor(float(index)) + torch.rand(())

    data = Jittered()
    assert len(data) == 3 and data[0] != data[0]


def a_drawn_transform_moves_both() -> None:
    image = torch.arange(4.0).view(1, 2, 2)
    mask = image[0].long()
    for _ in range(4):
        if torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        assert torch.equal(image[0].long(), mask)
    labels = F.interpolate(torch.tensor([[[[0.0, 2.0]]]]), scale_factor=2, mode="bilinear")
    assert not set(labels.flatten().tolist()) <= {0.0, 2.0}  # classes that do not exist
    nearest = F.interpolate(torch.tensor([[[[0.0, 2.0]]]]), scale_factor=2, mode="nearest")
    assert set(nearest.flatten().tolist()) <= {0.0, 2.0}


def std_of_a_set_needs_the_square_of_the_mean() -> None:
    images = torch.rand(8, 1, 1, 1) + 0.01 * torch.rand(8, 1, 4, 4)
    whole = images.std(correction=0)
    by_sums = (images.square().mean() - images.mean() ** 2).sqrt()
    assert torch.allclose(whole, by_sums, atol=1e-4)
    assert images.flatten(1).std(1, correction=0).mean() < 0.1 * whole


def uint8_and_float_images_scale_differently() -> None:
    image = torch.full((2, 2), 200, dtype=torch.uint8)
    assert (image / 255).max() < 1 < (image.float()).max()


def a_summed_filter_equals_repeated_channels() -> None:
    conv = nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 1, 5, 5)
    grey = F.conv2d(x, conv.weight.sum(1, keepdim=True), conv.bias)
    assert torch.allclose(grey, conv(x.expand(-1, 3, -1, -1)), atol=1e-5)


def sorted_names_shift_when_one_is_missing() -> None:
    names = sorted(["2", "10", "cat"])
    assert names == ["10", "2", "cat"]
    assert names.index("cat") != sorted(["2", "cat"]).index("cat")


def bce_wants_floats() -> None:
    outputs, targets = torch.randn(3, requires_grad=True), torch.ones(3, dtype=torch.long)
    with pytest.raises(RuntimeError, match="Found dtype Long but expected Float"):
        F.binary_cross_entropy(outputs.sigmoid(), targets).backward()
    with pytest.raises(RuntimeError, match="result type Float can't be cast to"):
        F.binary_cross_entropy_with_logits(outputs, targets).backward()
    F.mse_loss(outputs, targets.float()).backward()


def an_embedding_has_fixed_rows() -> None:
    table = nn.Embedding(3, 128)  # 128 columns used as logits draw ids up to 127
    with pytest.raises(IndexError, match="index out of range in self"):
        table(torch.tensor([3]))
    assert table(torch.tensor([2])).shape == (1, 128)


def one_sample_needs_a_batch_dimension() -> None:
    norm = nn.BatchNorm2d(3)
    with pytest.raises(ValueError, match=r"expected 4D input \(got 3D input\)"):
        norm(torch.ones(3, 4, 4))
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input"):
        nn.Conv2d(3, 2, 3)(torch.ones(8, 8))


def view_keeps_the_memory_order() -> None:
    x = torch.arange(6).view(2, 3)
    assert x.view(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]] != x.t().tolist()


def classes_are_the_second_dimension() -> None:
    logits, targets = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert torch.allclose(flat, F.cross_entropy(logits.transpose(1, 2), targets))
    with pytest.raises((RuntimeError, ValueError)):
        F.cross_entropy(logits, targets)
    square = torch.randn(2, 5, 5)  # classes and length alike: no error, a different value
    same = torch.randint(0, 5, (2, 5))
    assert not torch.allclose(
        F.cross_entropy(square, same), F.cross_entropy(square.transpose(1, 2), same)
    )


def squeeze_takes_every_one() -> None:
    assert torch.ones(1, 1).squeeze().shape == () and torch.ones(1, 1).squeeze(1).shape == (1,)


def rnn_shapes() -> None:
    out, (h, _) = nn.LSTM(3, 4, num_layers=2, batch_first=True)(torch.randn(5, 6, 3))
    assert out.shape == (5, 6, 4) and h.shape == (2, 5, 4)
    assert torch.allclose(out[:, -1], h[-1])


def probabilities_as_targets() -> None:
    logits, targets = torch.randn(4, 3), torch.randint(0, 3, (4,))
    hot = F.one_hot(targets, 3)
    assert torch.allclose(F.cross_entropy(logits, hot.float()), F.cross_entropy(logits, targets))
    with pytest.raises(RuntimeError):
        F.cross_entropy(logits, hot)


def in_place_keeps_the_type() -> None:
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.tensor([1, 9]).clamp_(0, torch.tensor(4.0))


def sorted_labels_swing() -> None:
    labels = torch.cat([torch.zeros(50), torch.ones(50)])
    by_order = torch.stack([b.mean() for b in labels.split(10)])
    by_chance = torch.stack([b.mean() for b in labels[torch.randperm(100)].split(10)])
    assert by_order.std() > 2 * by_chance.std()


def box_formats_do_not_overlap() -> None:
    x1, y1, w, h = 50.0, 50.0, 20.0, 20.0
    right, taken = (x1, y1, x1 + w, y1 + h), (x1, y1, w, h)  # width taken for a right edge
    overlap = max(0.0, min(right[2], taken[2]) - max(right[0], taken[0]))
    assert overlap == 0.0

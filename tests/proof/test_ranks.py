"""Ranks for experiments: they talk to each other, say what went wrong, and leave nothing behind."""

from __future__ import annotations

import functools
import multiprocessing
import os

import pytest

torch = pytest.importorskip("torch")

from fallline.proof.ranks import RankFailed, on_ranks  # noqa: E402


def total(rank: int, world: int, *, plus: float = 0.0) -> tuple[int, int, float]:
    value = torch.tensor([rank + 1.0 + plus])
    torch.distributed.all_reduce(value)
    return rank, os.getpid(), value.item()


def fails_on_one(rank: int, world: int) -> None:
    if rank == 1:
        raise ValueError("the second rank cannot")
    torch.distributed.barrier()


def dies_on_one(rank: int, world: int) -> None:
    if rank == 1:
        os._exit(3)
    torch.distributed.barrier()


def hangs_on_one(rank: int, world: int) -> None:
    if rank == 0:
        torch.distributed.recv(torch.zeros(1), src=1)
    else:
        import time

        time.sleep(600)


def test_ranks_reduce_together_and_answer_in_order() -> None:
    answers = on_ranks(total, world=2)
    assert [(rank, value) for rank, _, value in answers] == [(0, 3.0), (1, 3.0)]
    assert not multiprocessing.active_children()
    for _, pid, _ in answers:
        assert not os.path.exists(f"/proc/{pid}/fd/0")  # gone, or a corpse that its server collects


def tensors(rank: int, world: int) -> torch.Tensor:
    return torch.full((3,), float(rank))


def test_a_tensor_is_an_answer_too() -> None:
    assert [t.tolist() for t in on_ranks(tensors)] == [[0.0] * 3, [1.0] * 3]


def test_a_function_takes_arguments_of_its_own() -> None:
    assert [value for _, _, value in on_ranks(functools.partial(total, plus=1.0), world=3)] == [
        9.0
    ] * 3


def test_an_error_on_one_rank_is_the_error_that_is_told() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 failed:[\s\S]*the second rank cannot"):
        on_ranks(fails_on_one)
    assert not multiprocessing.active_children()


def test_a_rank_that_dies_does_not_leave_its_neighbour_waiting() -> None:
    with pytest.raises(RankFailed):
        on_ranks(dies_on_one)
    assert not multiprocessing.active_children()


def test_a_rank_that_hangs_is_ended() -> None:
    with pytest.raises(RankFailed, match="no answer in time"):
        on_ranks(hangs_on_one, seconds=3)
    assert not multiprocessing.active_children()

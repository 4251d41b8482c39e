from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy
import pytest
import torch

import fallline
from fallline.errors import EngineError
from gloo import run_ranks


def draws():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_the_same_seed_gives_the_same_draws():
    fallline.seed_everything(7)
    first = draws()
    seeds = fallline.seed_everything(7)
    assert first == draws() and seeds.seed == 7
    fallline.seed_everything(7, rank=1)
    assert first != draws()
    assert torch.equal(
        torch.rand(3, generator=seeds.generator), torch.rand(3, generator=seeds.generator)
    )
    with pytest.raises(EngineError, match="seed=-1"):
        fallline.seed_everything(-1)


class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.tensor(draws())


def test_workers_are_seeded():
    def read():
        seeds = fallline.seed_everything(3)
        loader = torch.utils.data.DataLoader(
            Draws(), num_workers=2, generator=seeds.generator, worker_init_fn=seeds.worker_init_fn
        )
        return torch.cat(list(loader))

    first, second = read(), read()
    assert torch.equal(first, second) and len(first.unique()) == first.numel()


def test_determinism_says_what_it_costs(caplog):
    try:
        seeds = fallline.seed_everything(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert "slower" in seeds.cost and "slower" in caplog.text
    finally:
        torch.use_deterministic_algorithms(False)
    assert "nothing" in fallline.seed_everything(0).cost


def test_alone_distributed_starts_nothing():
    with fallline.distributed(seed=5) as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_main, ranks.seeds.seed) == (0, 1, True, 5)
        assert not torch.distributed.is_initialized()
        model = torch.nn.Linear(1, 1)
        assert ranks.wrap(model) is model
        assert len(ranks.loader(torch.arange(10), batch_size=5)) == 2


@pytest.mark.slow
def test_the_example_runs_under_torchrun(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "examples/engine_distributed.py",
        str(tmp_path),
    ]
    run = run_ranks(command, env=environment, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    alone = subprocess.run(
        [sys.executable, "examples/engine_distributed.py", str(tmp_path / "alone")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert "2 ranks" in run.stdout and "1 rank" in alone.stdout

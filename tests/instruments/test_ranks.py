"""`fallline measure ranks`: ranks that are unequal in a known way, and a rank that never comes."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fallline.errors import UsageError
from fallline.instruments.ranks import (
    measure_ranks,
    no_sync_gain,
    parameters_equal,
    sampler_overlap,
)
from fallline.instruments.ranks.judge import stragglers
from fallline.instruments.ranks.machine import here, torchrun_line
from fallline.instruments.ranks.measure import compared
from fallline.instruments.ranks.meeting import Meeting, SilentRank
from fallline.instruments.ranks.talk import SIZES
from fallline.proof.ranks import on_ranks
from gloo import run_ranks


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


# -- arithmetic ----------------------------------------------------------------------------------------------------


def test_the_gain_of_no_sync() -> None:
    assert no_sync_gain(1, 0, 4) == 1
    assert no_sync_gain(0, 1, 4) == 4  # the bound
    assert no_sync_gain(1, 14, 4) == pytest.approx(3.33, abs=0.01)
    assert no_sync_gain(1, 2, 4) == 2
    with pytest.raises(ValueError, match="at least one micro-batch"):
        no_sync_gain(1, 1, 0)


def test_samples_that_several_ranks_read() -> None:
    same = sampler_overlap([range(100), range(100)])
    assert (same.share, same.samples, same.ranks, same.is_padding) == (1.0, 200, [0, 1], False)
    assert sampler_overlap([range(50), range(50, 100)]).share == 0
    half = sampler_overlap([range(100), range(50, 150), range(200, 300)])
    assert (half.shared, half.ranks) == (100, [0, 1])
    assert sampler_overlap([[0, 2, 4], [1, 3, 0]]).is_padding  # five samples on two ranks


def test_a_rank_that_takes_longer_is_named() -> None:
    assert stragglers([1.0, 1.05, 2.0, 1.0]) == {2: 2.0}
    assert stragglers([1.0, 1.1]) == {}
    assert stragglers([]) == {}


def test_ranks_that_each_read_everything_are_told_before_they_meet_the_same_sample() -> None:
    def saw(samples: list[int], reads: tuple[int, int] | None) -> dict[str, Any]:
        nothing = {
            "prints": [],
            "updates": 1,
            "ddp": True,
            "seeds": {},
            "repeats": None,
            "own": None,
        }
        times = {
            "synchronised": None,
            "alone": None,
            "measured": 0,
            "backwards": 0,
            "synchronising": 0,
        }
        return {**nothing, **times, "samples": samples, "reads": reads}

    apart = compared([saw([1, 2], (1000, 1000)), saw([3, 4], (1000, 1000))])
    assert (apart.whole, apart.overlap and apart.overlap.share) == (1000, 0.0)
    assert compared([saw([1], (500, 1000)), saw([2], (500, 1000))]).whole is None
    assert compared([saw([1], (1000, 1000)), saw([2], None)]).whole is None


# -- this machine --------------------------------------------------------------------------------------------------


def test_alone_it_describes_the_machine_and_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    found = measure_ranks()
    assert found.world == 1 and found.machines[0].torch == torch.__version__
    assert f"torchrun --standalone --nproc-per-node {torch.cuda.device_count() or min(2, os.cpu_count() or 1)} train.py" in found.torchrun  # fmt: skip
    assert found.torchrun in found.text() and "gloo" in found.text()
    with pytest.raises(UsageError, match=r"under torchrun: .*measure ranks train.py"):
        measure_ranks("train.py")


def test_several_nodes_meet_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NNODES", "4")
    monkeypatch.setenv("MASTER_ADDR", "first.example")
    line = torchrun_line(here())
    assert "--nnodes 4" in line and "--rdzv-endpoint first.example:29500" in line


# -- ranks that do not come ------------------------------------------------------------------------------------------


def meetings(monkeypatch: pytest.MonkeyPatch, world: int, count: int) -> list[Meeting]:
    """The first `count` of `world` ranks, in one process."""
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    found = []
    for rank in range(count):
        monkeypatch.setenv("RANK", str(rank))
        found.append(Meeting(seconds=1.0))
    return found


def at_once(*jobs: Any) -> list[Any]:
    results: list[Any] = [None] * len(jobs)

    def run(place: int) -> None:
        try:
            results[place] = jobs[place]()
        except SilentRank as silent:
            results[place] = silent

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_everyone_gets_everyones_word(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = meetings(monkeypatch, 2, 2)
    told = at_once(lambda: first.gather("x", {"a": 1}), lambda: second.gather("x", [2]))
    assert told == [[{"a": 1}, [2]]] * 2


def test_the_rank_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = meetings(monkeypatch, 3, 2)
    for silent in at_once(lambda: first.gather("x", 0), lambda: second.gather("x", 1)):
        assert "rank 2 of 3 did not answer within 1 s" in str(silent)


def test_the_rank_that_hangs_in_a_collective_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = meetings(monkeypatch, 2, 2)
    never = threading.Event()
    stuck, through = at_once(
        lambda: first.together("adding up", never.wait),
        lambda: second.together("adding up", lambda: 7),
    )
    assert through == 7
    assert "adding up did not end within 1 s; rank 0 did not come through" in str(stuck)


def test_a_rank_whose_work_raises_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("connection closed by peer\nand more")

    first, second = meetings(monkeypatch, 2, 2)
    failed, _ = at_once(lambda: first.together("it", fails), lambda: second.together("it", int))
    assert str(failed).endswith("rank 0 did not come through: connection closed by peer")


@pytest.mark.slow
def test_the_verb_names_the_silent_rank_and_ends(tmp_path: Path) -> None:
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fallline",
            "measure",
            "ranks",
            "--answer-within",
            "1",
            "--output-format",
            "json",
        ],
        cwd=tmp_path,
        env={**environ, "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["partial"] and "rank 1 of 2 did not answer within 1 s" in answer["silent"]
    assert "rank 1 of 2" in done.stderr and "Traceback" not in done.stderr


# -- two real ranks ------------------------------------------------------------------------------------------------


def compares(rank: int, world: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = [p.detach().clone() for p in model.parameters()]
    equal = parameters_equal(model)
    if rank == 1:
        with torch.no_grad():
            model[0].bias[2] += 1e-6  # type: ignore[index]
        model[1].running_mean[0] = -0.0  # type: ignore[index, union-attr]
    unequal = parameters_equal(model)
    untouched = rank == 1 or all(
        torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
    )
    return equal, unequal, untouched


def test_unequal_parameters_are_named() -> None:
    for equal, unequal, untouched in on_ranks(compares, 2):
        assert equal == {} and untouched
        assert unequal == {"0.bias": [1], "1.running_mean": [1]}


def trains(
    rank: int,
    *,
    ddp: bool,
    seed: int,
    sampler: bool,
    spoil_at: int | None,
    stop_at: int | None = None,
) -> None:
    torch.manual_seed(seed + rank if seed else 0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    inner = model
    if ddp:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(640.0).reshape(160, 4) / 640)
    shares = DistributedSampler(data, shuffle=True) if sampler else None
    loader = DataLoader(data, batch_size=8, sampler=shares, shuffle=None if sampler else True)
    step = 0
    for _ in range(50):  # set_epoch is forgotten
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if step == stop_at:
                raise KeyboardInterrupt
            if step == spoil_at and rank == 1:
                with torch.no_grad():
                    inner[1].weight.mul_(1.001)  # type: ignore[index, operator, union-attr]
            step += 1


def measures(rank: int, world: int, port: int, **how: Any) -> Any:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}  # fmt: skip
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    found = measure_ranks(functools.partial(trains, rank, **how), updates=30, seconds=60)
    return found.to_json(), found.text(), dist.is_initialized()


def measured(**how: Any) -> tuple[dict[str, Any], str]:
    answers = on_ranks(functools.partial(measures, port=free_port(), **how), 2, seconds=240)
    assert all(still for _, _, still in answers)
    return answers[0][0], answers[0][1]


@pytest.mark.slow
def test_ranks_without_ddp_their_own_seeds_and_one_loader() -> None:
    answer, text = measured(ddp=False, seed=5, sampler=False, spoil_at=None)
    trained = answer["trained"]
    assert trained["unequal_update"] == 0
    assert trained["unequal"] == {
        name: [1] for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    }
    assert [seeds["torch seed"] for seeds in trained["seeds"]] == [5, 6]
    assert (trained["overlap"]["share"], trained["whole"]) == (1.0, 160)
    assert any("DistributedSampler" in problem for problem in answer["problems"])
    assert any("parameters differ between ranks from update 0 on, 0.weight first" in p for p in answer["problems"])  # fmt: skip
    assert "in no DistributedDataParallel" in text
    # and what was measured between them
    talk = answer["talk"]
    assert [one["size"] for one in talk["all_reduce"]] == list(SIZES)
    assert all(one["bandwidth"] > 0 for one in talk["all_reduce"])
    assert [(p["a"], p["b"]) for p in talk["pings"]] == [(0, 1)] and len(talk["work"]) == 2


@pytest.mark.slow
def test_ranks_under_ddp_and_one_that_is_changed_by_hand() -> None:
    answer, text = measured(ddp=True, seed=0, sampler=True, spoil_at=3)
    trained = answer["trained"]
    assert (trained["unequal_update"], list(trained["unequal"])) == (4, ["module.1.weight"]) or (
        trained["unequal_update"] == 4 and "module.1.weight" in trained["unequal"]
    )
    assert (trained["overlap"]["share"], trained["whole"]) == (0.0, None)
    assert any("set_epoch" in problem for problem in answer["problems"])
    assert trained["repeats"]
    assert "all ranks draw the same random numbers" in text
    # ten updates per epoch and rank, thirty in all: six to warm up, twelve as ever, twelve alone
    assert (trained["updates"], trained["compared"], trained["synchronising"]) == (30, 18, 1.0)
    assert trained["compute"] > 0 and set(trained["gains"]) == {"2", "4", "8"}
    assert 1 <= trained["gains"]["2"] <= trained["gains"]["4"] <= trained["gains"]["8"] <= 8


@pytest.mark.slow
def test_ctrl_c_leaves_a_partial_result() -> None:
    answer, text = measured(ddp=True, seed=3, sampler=True, spoil_at=None, stop_at=9)
    assert (answer["partial"], answer["status"], answer["trained"]["updates"]) == (True, 130, 10)
    assert answer["talk"]["all_reduce"] and "partial: not everything was measured" in text


DDP = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).square().mean()
    loss.backward()
    optimizer.step()
    with open(f"{sys.argv[1]}-{dist.get_rank()}", "a") as file:
        print(f"{step} {loss.item():.17g}", file=file)
dist.barrier()  # nobody leaves while a neighbour still reads
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_under_torchrun_the_script_trains_to_the_same_bits_until_it_is_told_not_to_synchronise(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(DDP)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = run_ranks([*torchrun, *arguments], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    run("train.py", "plain")
    done = run("-m", "fallline", "measure", "ranks", "--updates", "12", "--output-format", "json", "--out", "m", "train.py", "measured")  # fmt: skip
    answer = json.loads(done.stdout)  # one answer, of rank 0
    assert answer == json.loads((tmp_path / "m" / "ranks.json").read_text())
    assert (answer["world"], answer["trained"]["unequal_update"], answer["partial"]) == (
        2,
        None,
        False,
    )
    assert answer["trained"]["seeds"][0] != answer["trained"]["seeds"][1]
    for rank in "01":
        wanted = (tmp_path / f"plain-{rank}").read_text().splitlines()
        # two to warm up and five as ever: the eighth loss is the last of parameters that had all been synchronised
        assert (tmp_path / f"measured-{rank}").read_text().splitlines()[:8] == wanted[:8]

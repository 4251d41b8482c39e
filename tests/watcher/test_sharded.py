"""Several ranks, each started once for many loops: order faults on shards are found at their line, broken hardware by its rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.watcher.test_named_ranks import marked

from fallline.conclude import findings_of
from fallline.report.html import page
from fallline.report.run import summary
from fallline.runs.read import read_run
from fallline.runs.series import Rank, Series
from fallline.runs.store import Store
from fallline.runs.update import UpdateRow
from fallline.show.terminal import Paint
from gloo import run_workers

WORKER = Path(__file__).with_name("sharded_worker.py")
# loop → what is found, at the line that ends with this mark; the early clip counts as one inside the window
FAULTS = {
    "right": {},
    "clip_early": {"FL103": "FL102"},
    "clip_late": {"FL101": "FL101"},
    "never_cleared": {"FL106": "FL106"},
    "wiped": {"FL105": "FL105"},
    "undivided": {"FL104": "FL104"},
    "always_synced": {},  # FSDP2 without it keeps whole gradients: a choice between time and memory
    "never_synced": {"FL310": "FL310"},
    "clip_some": {"FL114": "FL114"},
    "clip_own_shards": {"FL308": "FL308"},
    "clip_over_ranks": {},
}
DDP = {"clip_early": {"FL301"}, "undivided": {"FL301"}, "always_synced": {"FL301"}, "never_synced": {"FL320"}}  # fmt: skip


def ran(folder: Path, world: int, kinds: list[str]) -> dict[str, Any]:
    said = run_workers(str(WORKER), str(folder), *kinds, world=world)
    assert "the watcher failed" not in said, said
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What needs two ranks in every test run, in one start of them."""
    return ran(tmp_path_factory.mktemp("ranks"), 2, ["fsdp2", "hardware"])


def test_order_faults_under_fsdp2(together: dict[str, Any]) -> None:
    judge({name: seen for name, seen in together.items() if name != "hardware"}, ["fsdp2"])


def test_broken_hardware_is_named_and_right_runs_are_silent(together: dict[str, Any]) -> None:
    result = together["hardware"]
    broken = {"weight flips": 15, "gradient flips": 15, "backward flips": 15, "forward does not repeat": 3}  # fmt: skip
    for case, seen in result.items():
        found = [f[2:4] for f in seen["found"] if f[0] == "FL325"]
        assert found == ([[broken[case], 1]] if case in broken else []), case
        if "repeat" not in case and case != "backward flips":  # those are never the same twice
            assert seen["same"], case


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "kinds"),
    [
        (2, ["tp", "ddp", "compiled"]),
        (4, ["fsdp2", "tp"]),
    ],
)
def test_order_faults_on_shards(tmp_path: Path, world: int, kinds: list[str]) -> None:
    judge(ran(tmp_path, world, kinds), kinds)


def judge(result: dict[str, Any], kinds: list[str]) -> None:
    source = WORKER.read_text()
    assert [name for name, seen in result.items() if not seen["same"]] == []
    for kind in kinds:
        for loop, expected in FAULTS.items():
            expected = {} if kind == "ddp" and loop == "clip_own_shards" else expected
            found = {code: line for code, line, *_ in result[f"{kind} {loop}"]["found"]}
            more = DDP.get(loop, set()) if kind == "ddp" else set()
            assert found.keys() == expected.keys() | more, (kind, loop, found)
            for code, mark in expected.items():
                assert found[code] == marked(source, mark), (kind, loop)
        # the guard keeps the one rank's NaN out: the run stays finite, and the finding names rank and update
        (nan,) = [
            f for f in result[f"{kind} one_shard_is_nan"]["found"] if f[0] in ("FL621", "FL620")
        ]
        assert nan[0] == "FL621" and nan[2:] == [3, 1], nan
        assert result[f"{kind} one_shard_is_nan"]["finite"]
        said = result[f"{kind} one_shard_is_nan"]["said"]
        assert ("set this rank's shards of the gradient to zero" in said) == (kind != "ddp"), said


# -- without processes ------------------------------------------------------------------------------------------


def test_what_several_ranks_hold_alike_counts_once_in_the_norm() -> None:
    """A norm is the sum of what each rank measures: shards of one or two meshes, copies inside a mesh and beside it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from fallline.watcher.finite import _counts_here, _is_first

    def counts(rank: int) -> dict[str, bool]:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        _is_first.cache_clear()
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        stages = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        whole = init_device_mesh("cpu", (4,))
        part = torch.ones(2)
        laid = {
            "FSDP2 x TP": (both, (_StridedShard(0, split_factor=2), Shard(0))),
            "FSDP2, the same on all of TP": (both, (Shard(0), Replicate())),
            "FSDP2 beside TP": (both["dp"], (Shard(0),)),
            "FSDP2 of a stage": (stages["dp"], (Shard(0),)),
            "FSDP2": (whole, (Shard(0),)),
            "copies": (whole, (Replicate(),)),
        }
        try:
            spread = {
                name: _counts_here(DTensor.from_local(part, mesh, placements, run_check=False))
                for name, (mesh, placements) in laid.items()
            }
            return spread | {"plain": _counts_here(part)}
        finally:
            dist.destroy_process_group()

    seen = [counts(rank) for rank in range(4)]
    assert {name: [rank for rank in range(4) if seen[rank][name]] for name in seen[0]} == {
        "FSDP2 x TP": [0, 1, 2, 3],
        "FSDP2, the same on all of TP": [0, 2],
        "FSDP2 beside TP": [0, 2],
        "FSDP2 of a stage": [0, 1, 2, 3],
        "FSDP2": [0, 1, 2, 3],
        "copies": [0],
        "plain": [0],
    }


def test_shards_of_some_ranks_are_not_called_the_norm(tmp_path: Path) -> None:
    """Two of four ranks are here: their files lie on two machines."""
    for rank in (0, 1):
        store = Store.create(tmp_path, rank)
        store.meta("world", 4)
        store.meta("optimizer#1", {"type": "SGD", "sharded": True})
        store.updates([UpdateRow(i, loss=1.0, grad_norm=3.0, time=1.0 + i) for i in range(5)])
        store.close()
    series = read_run(tmp_path)
    said = summary(series, [], Paint(False))
    assert "2 of 4 ranks" in said and "median 3, of rank 0's shards alone" in said
    assert "Gradient norm of rank 0&#x27;s shards" in page(series, [])


def checked(rank: int, weights: list[str]) -> Rank:
    rows = [{"update": 9 + 10 * i, "at": ["train.py", 4], "weights": [w, w]} for i, w in enumerate(weights)]  # fmt: skip
    return Rank(rank, {"hardware": {"every": 10, "checks": rows}})


def test_the_odd_one_of_several_ranks() -> None:
    ranks = [checked(0, ["a", "b"]), checked(1, ["a", "c"]), checked(2, ["a", "b"])]
    (found,) = findings_of(Series(ranks=ranks), {})
    assert found.code == "FL325" and found.evidence["rank"] == 1 and found.evidence["step"] == 19
    assert findings_of(Series(ranks=[checked(r, ["a", "b"]) for r in range(3)]), {}) == []
    differ = [checked(r, [f"a{r}", f"b{r}"]) for r in range(3)]  # other parameters on each rank
    assert findings_of(Series(ranks=differ), {}) == []


def test_what_is_no_check_is_left_out() -> None:
    for described in (None, [], {"checks": 3}, {"checks": [3, {"update": "x"}, {"update": 1, "at": 4}]}):  # fmt: skip
        assert findings_of(Series(ranks=[Rank(0, {"hardware": described})]), {}) == []

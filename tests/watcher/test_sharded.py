"""Order faults under FSDP2, FSDP2 with tensor parallel, DDP and compiled blocks: found at their line, with the losses of a bare run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.watcher.test_named_ranks import free_port, marked

from gloo import run_ranks

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
}
DDP = {"clip_early": {"FL301"}, "undivided": {"FL301"}, "always_synced": {"FL301"}, "never_synced": {"FL320"}}  # fmt: skip


def ran(folder: Path, world: int, kinds: list[str]) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", f"--master-port={free_port()}",
        str(WORKER), str(folder), *kinds,
    ]  # fmt: skip
    done = run_ranks(command, cwd=folder, timeout=400, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the watcher failed" not in done.stderr, done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


@pytest.mark.parametrize(
    ("world", "kinds"),
    [
        (2, ["fsdp2"]),
        pytest.param(2, ["tp", "ddp", "compiled"], marks=pytest.mark.long),
        pytest.param(4, ["fsdp2", "tp"], marks=pytest.mark.long),
    ],
)
def test_order_faults_on_shards(tmp_path: Path, world: int, kinds: list[str]) -> None:
    result = ran(tmp_path, world, kinds)
    source = WORKER.read_text()
    assert [name for name, seen in result.items() if not seen["same"]] == []
    for kind in kinds:
        for loop, expected in FAULTS.items():
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

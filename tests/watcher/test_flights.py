"""Dumps of torch's flight recorder: read without running anything that is in them, and merged with what the ranks say."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.watcher.test_named_ranks import state

from fallline.conclude import findings_of
from fallline.runs.flight import flight_lines, parting, read_flights
from fallline.runs.series import Series


def entry(number: int, what: str, line: int, *, done: bool) -> dict[str, Any]:
    """As torch 2.13 writes it (`torch._C._distributed_c10d._dump_fr_trace`)."""
    inside = {"name": what, "filename": "/x/site-packages/torch/distributed/c10d.py", "line": 9}
    return {
        "frames": [inside, {"name": "f", "filename": "/home/a/train.py", "line": line}],
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{what}", "time_created_ns": 1, "input_sizes": [[3]],
        "input_dtypes": ["Float"], "output_sizes": [[3]], "output_dtypes": ["Float"],
        "state": "completed" if done else "started", "retired": done, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


WAITS = dump(entry(1, "all_reduce", 40, done=True), entry(2, "all_reduce", 40, done=False))
BEHIND = dump(entry(1, "all_reduce", 40, done=True))
OTHER = dump(entry(1, "all_reduce", 40, done=True), entry(2, "all_gather", 88, done=False))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_hang_is_explained_by_the_dumps(tmp_path: Path, form: str) -> None:
    for rank, body in enumerate((WAITS, BEHIND)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(body, 2) if form == "pickle" else json.dumps(body).encode())
    flights = read_flights([tmp_path])
    assert flight_lines(flights) == [
        "Rank 1 has finished collective 1, all_reduce at /home/a/train.py:40.",
        "Rank 0 is waiting in collective 2, all_reduce at /home/a/train.py:40.",
    ]
    assert read_flights([tmp_path / "nccl_trace_rank_"]) == flights  # as torch is given it
    waits, sits = state(0, doing="all_reduce"), state(1, doing="")
    (hang,) = findings_of(Series(states={0: waits, 1: sits}, flights=flights), {})
    assert hang.code == "FL323" and "Rank 0 is waiting in collective 2" in hang.message


def test_collectives_that_part_are_found_from_dumps_alone(tmp_path: Path) -> None:
    for rank, body in enumerate((WAITS, WAITS, OTHER)):
        (tmp_path / f"trace{rank}").write_bytes(pickle.dumps(body, 2))
    flights = read_flights([tmp_path])
    assert parting(flights) is not None
    (part,) = findings_of(Series(flights=flights), {})
    assert part.code == "FL322" and part.at.line == 88
    assert part.evidence["calls"] == {"all_gather": [2], "all_reduce": [0, 1]}


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


def test_a_dump_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rank, body in enumerate((Bomb(), {"entries": [Bomb()]}, WAITS | {"version": Bomb()})):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(body))
    assert read_flights([tmp_path]) == {} and not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"\x80", b"\x80\x02.", b"{", b'{"entries": 3}', b'{"entries": [3]}', b"\x80\x02]q\x00h\x00a.", b"(" * 9999],
)  # fmt: skip
def test_what_is_no_dump_is_left_out(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "trace_0").write_bytes(body)
    assert read_flights([tmp_path]) == {}


def test_a_dump_that_torch_wrote(tmp_path: Path) -> None:
    """By gloo, of one rank: the schema is that of the torch that is installed."""
    distributed = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(distributed, "_dump_fr_trace"):
        pytest.skip("this torch records no flights outside of NCCL")
    script = (
        "import pickle, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='file://' + __file__ + '.store', rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "for _ in range(100):  # gloo notes the end of a collective a moment after it has returned\n"
        "    dump = torch._C._distributed_c10d._dump_fr_trace()\n"
        "    if pickle.loads(dump)['entries'][0]['state'] == 'completed':\n"
        "        break\n"
        "    time.sleep(0.1)\n"
        "open('trace_0', 'wb').write(dump)\n"
    )
    (tmp_path / "train.py").write_text(script)
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "20", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True)
    (line,) = flight_lines(read_flights([tmp_path]))
    assert (
        line.startswith("Rank 0 has finished collective 1, all_reduce at ") and "train.py:3" in line
    )

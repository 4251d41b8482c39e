"""Which rank, which line: stragglers, hangs, dead ranks and collectives that part, for real on gloo; and what a folder may hold."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.conclude import findings_of
from fallline.finding import Finding
from fallline.location import Location
from fallline.rules import rule_by_code
from fallline.runs.attempts import attempt_lines, earlier_attempts
from fallline.runs.rank import RankState, Spent, read_rank, read_ranks, write_rank
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.runs.stall import stall_text
from fallline.watcher import heartbeat, whereabouts
from gloo import run_ranks

MANY = [pytest.param(world, marks=pytest.mark.long) for world in (4, 8)]
SPOILT = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for update in range(60):
    inputs = torch.randn(16, 8)
    out = model(inputs)
    loss = (out - inputs[:, :1]).pow(2).mean()
    if update == 10 and dist.get_rank() == 1:
        loss = torch.log(0 * out.abs()).mean()  # FL620
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL320
    if update == 20 and dist.get_rank() == 1:
        model.module.weight.data.add_(0.1)
dist.destroy_process_group()
"""


def launch(folder: Path, source: str, world: int) -> list[subprocess.Popen[str]]:
    """That script on so many ranks, as torchrun starts it."""
    (folder / "train.py").write_text(source)
    port = free_port()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"],
            cwd=folder,
            env=os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def free_port() -> int:
    """Below those that the system hands out by itself: nobody else gets it between this look and its use."""
    for port in range(20_000 + os.getpid() % 9_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


def marked(source: str, code: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if line.endswith(f"# {code}"))


def found(folder: Path, **thresholds: dict[str, float]) -> dict[str, Finding]:
    return {f.code: f for f in findings_of(read_run(folder / "run"), thresholds)}


def ended(processes: list[subprocess.Popen[str]], seconds: float = 300) -> None:
    for process in processes:
        process.communicate(timeout=seconds)


def specimen(code: str, kind: str = "wrong") -> str:
    rule = rule_by_code(code)
    assert rule is not None
    return str(getattr(rule, kind)[0])


def eventually(look: Callable[[], Finding | None]) -> Finding:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if (seen := look()) is not None:
            return seen
        time.sleep(0.2)
    raise AssertionError("never seen")


def when(folder: Path, world: int, seconds: float, moved: int) -> None:
    """Wait until all ranks have made so many updates and none for so long."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        states = read_ranks([folder / "run"]) if (folder / "run").is_dir() else {}
        if len(states) == world and all(
            s.updates >= moved and s.idle > seconds for s in states.values()
        ):
            return
        time.sleep(0.2)
    raise AssertionError("the ranks never came to rest")


@pytest.mark.parametrize("world", [2, *MANY])
def test_a_straggler_and_a_rank_that_raises(tmp_path: Path, world: int) -> None:
    """One run for both: rank 1 is slow in each update, and raises in the last."""
    # a few ranks on each core: updates take that long anyway
    slow = specimen("FL321").replace("sleep(0.02)", f"sleep({0.02 if world == 2 else 0.3})")
    source = slow.replace(
        "dist.destroy_process_group()",
        "if dist.get_rank() == 1:\n    raise RuntimeError('a corrupt sample')  # FL324\ndist.barrier()",
    )
    processes = launch(tmp_path, source, world)
    ended(processes)
    says = found(tmp_path)
    slow, died = says["FL321"], says["FL324"]
    assert slow.at.line == marked(source, "FL321") and slow.evidence["rank"] == 1
    assert slow.evidence["part"] == "other" and slow.evidence["seconds"] > 0.01
    assert died.at.line == marked(source, "FL324") and "a corrupt sample" in died.message
    assert died.evidence["rank"] == 1


@pytest.mark.parametrize("world", [2, *MANY])
def test_a_hang_by_a_branch_and_then_a_kill(tmp_path: Path, world: int) -> None:
    source = specimen("FL323")
    processes = launch(tmp_path, source, world)
    try:
        when(tmp_path, world, 4.0, 30)
        states = read_ranks([tmp_path / "run"])
        assert [s.waits for s in states.values()].count(False) == 1
        # on a busy machine an update may have taken long, and a hang is ten times as long
        hang = eventually(lambda: found(tmp_path, FL323={"stalled": 3.0}).get("FL323"))
        assert hang.at.line == marked(source, "FL323") and hang.evidence["ranks"] == [1]
        assert "in evaluate()" in hang.message and "wait" in hang.message
        processes[1].send_signal(signal.SIGKILL)
        died = eventually(lambda: found(tmp_path).get("FL324"))
        assert died.evidence["rank"] == 1 and "without a word" in died.message
    finally:
        for process in processes:
            process.kill()


def test_collectives_that_part(tmp_path: Path) -> None:
    source = specimen("FL322")
    processes = launch(tmp_path, source, 2)
    try:
        when(tmp_path, 2, 3.0, 6)
        parts = found(tmp_path)["FL322"]
    finally:
        for process in processes:
            process.kill()
    assert f"barrier at train.py:{marked(source, 'FL322')}" in parts.message
    assert parts.evidence["calls"] == {"all_reduce": [0], "barrier": [1]}


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_nan_on_one_rank_and_a_drift(tmp_path: Path, world: int) -> None:
    processes = launch(tmp_path, SPOILT, world)
    ended(processes, 300)
    says = found(tmp_path)
    nan, apart = says["FL620"], says["FL320"]
    assert nan.at.line == marked(SPOILT, "FL620") and nan.evidence["rank"] == 1
    assert nan.evidence["step"] == 10 and nan.evidence["op"] == "log"
    assert apart.at.line == marked(SPOILT, "FL320") and apart.evidence["step"] == 24
    if world > 2:  # of two that differ nobody knows which one is right
        assert apart.evidence["rank"] == 1


@pytest.mark.long
def test_an_elastic_restart_is_one_report(tmp_path: Path) -> None:
    source = specimen("FL324").replace(
        "if update == 30 and",
        'if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and update == 30 and',
    )
    # torch's gloo dials addresses of the attempt before, where it finds them in the same store
    own = 'init_method=f"file://{os.getcwd()}/store" + os.environ["TORCHELASTIC_RESTART_COUNT"]'
    ranks = 'rank=int(os.environ["RANK"]), world_size=2'
    assert 'init_process_group("gloo")' in source
    source = source.replace('process_group("gloo")', f'process_group("gloo", {own}, {ranks})')
    (tmp_path / "train.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ]
    command += [f"--master-port={free_port()}", "-m", "fallline", "run", "--out", "run", "train.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run_ranks(command, cwd=tmp_path, env=environment, timeout=400)
    series = read_run(tmp_path / "run-2")
    (before,) = series.attempts
    assert before.folder.name == "run" and before.updates in (29, 30, 31)
    died = {f.code: f for f in findings_of(series)}["FL324"]
    assert died.evidence["attempt"] == 1 and died.evidence["rank"] == 1
    assert died.at.line == marked(source, "FL324") and "(attempt 1 of 2)" in died.message
    written = json.loads((tmp_path / "run-2" / "findings.json").read_text())
    assert "FL324" in {f["code"] for f in written}


# -- without processes ---------------------------------------------------------------------------------------------


def state(rank: int, **known: object) -> RankState:
    base = dict(world=4, started=1.0, written=1000.0, updates=500, last_update=900.0, longest=0.5)
    return RankState(rank, **(base | known))  # type: ignore[arg-type]


def series(*states: RankState) -> Series:
    return Series(states={s.rank: s for s in states})


def test_healthy_ranks_are_silent() -> None:
    calm = {"data": 0.01, "forward": 0.1, "backward": 0.2, "step": 0.05, "other": 0.0, "wait": 0.1}
    going = [state(r, last_update=999.0, seconds=calm) for r in range(4)]
    assert findings_of(series(*going), {}) == []
    done = [state(r, ended="finished", seconds=calm) for r in range(4)]
    assert findings_of(series(*done), {}) == []
    assert stall_text({s.rank: s for s in going}) == ""


def test_the_slowest_of_a_thousand_is_named() -> None:
    def seconds(data: float) -> dict[str, float]:
        return {"data": data, "forward": 0.1, "backward": 0.3, "step": 0.05, "wait": 0.2}

    states = [state(r, last_update=999.0, seconds=seconds(0.01)) for r in range(1000)]
    states[617] = state(617, last_update=999.0, seconds=seconds(0.15))
    (slow,) = findings_of(series(*states), {})
    assert slow.code == "FL321" and slow.evidence["rank"] == 617 and slow.evidence["part"] == "data"


def test_the_line_where_the_time_goes_is_named_and_other_late_ranks_too() -> None:
    def rank(number: int, late: float, *lines: Spent) -> RankState:
        seconds = {"forward": 0.1 + late, "backward": 0.3 - late, "other": 0.1, "wait": 0.2 - late}
        return state(number, last_update=999.0, seconds=seconds, lines=list(lines))

    crop, loss = Location("data.py", 7, function="crop"), Location("train.py", 9)
    usual = Spent(loss, 0.7), Spent(crop, 0.01)
    ranks = [rank(n, 0.0, *usual) for n in (0, 2, 3)]
    (slow,) = findings_of(series(*ranks, rank(1, 0.2, Spent(loss, 0.5), Spent(crop, 0.3))), {})
    assert slow.at == crop and "most of it at data.py:7 in crop()" in slow.message
    assert slow.evidence["late"] == [1] and "as well" not in slow.message
    # looks that show nothing, or none at all: the line of the loop
    (slow,) = findings_of(series(*ranks, rank(1, 0.2, *usual)), {})
    assert slow.evidence["rank"] == 1 and slow.at != crop and "most of it" not in slow.message
    many = [rank(n, 0.0) for n in range(6)]
    (slow,) = findings_of(series(*many, rank(6, 0.2), rank(7, 0.15)), {})
    assert slow.evidence["late"] == [6, 7] and "(rank 7 is slow as well)" in slow.message


def test_ranks_that_differ_are_looked_at_more_often(tmp_path: Path) -> None:
    def seconds(data: float) -> dict[str, float]:
        return {"data": data, "forward": 0.1, "backward": 0.3, "step": 0.05, "wait": 0.2}

    calm, slow = state(2, seconds=seconds(0.01)), state(1, seconds=seconds(0.15))
    assert not heartbeat._uneven(calm, tmp_path)  # nobody has written yet
    for one in (slow, calm, state(3, seconds=seconds(0.012))):
        write_rank(tmp_path, one)
    assert heartbeat._uneven(slow, tmp_path)
    assert heartbeat._uneven(state(0, seconds=seconds(0.01)), tmp_path)  # the one before it
    assert not heartbeat._uneven(calm, tmp_path)


def test_the_stack_is_looked_at_seldom_unless_ranks_differ() -> None:
    made = 0

    def steps() -> int:
        nonlocal made
        made += 1
        return made

    looks = whereabouts.Whereabouts(steps, lambda seconds: None)
    assert looks._between() == whereabouts.OFTEN
    for _ in range(whereabouts.FIRST + 1):
        looks._look()
    assert looks._between() == whereabouts.SELDOM and len(looks._seen) == whereabouts.FIRST
    looks.compare(True)
    assert looks._between() == whereabouts.OFTEN and not looks._seen
    looks._look()
    looks.compare(True)
    assert len(looks._seen) == 1
    looks.compare(False)
    assert looks._between() == whereabouts.SELDOM
    looks.compare(True)  # now uneven, now not: that says nothing more
    assert looks._between() == whereabouts.SELDOM
    for _ in range(whereabouts.KEPT + whereabouts.CLOSELY):
        looks._look()
    looks.compare(False)
    looks.compare(True)
    assert looks._between() == whereabouts.OFTEN
    for _ in range(whereabouts.CLOSELY):
        looks._look()
    looks.compare(True)
    assert looks._between() == whereabouts.SELDOM  # that many show on which line the time goes


def test_a_rank_that_still_writes_is_not_called_dead() -> None:
    """Of those that lost a connection nobody knows to whom; who wrote a moment ago is there."""
    now = time.time()
    lost = "raised RuntimeError: Connection closed by peer"
    moments = {0: now - 1, 1: now - 3, 2: now - 5, 3: now - 1}

    def seen(**gone: float) -> list[Finding]:
        ranks = {r: gone.get(f"rank{r}", moment) for r, moment in moments.items()}
        return findings_of(
            series(
                *(
                    state(r, written=at, last_update=at, ended="" if r else lost)
                    for r, at in ranks.items()
                )
            ),
            {},
        )

    assert [f.code for f in seen()] == []
    (died,) = seen(rank1=now - 9)
    assert died.code == "FL324" and died.evidence["rank"] == 1


def test_everybody_raises_the_same_is_no_dead_rank() -> None:
    raised = [state(r, ended="raised ValueError: bad option") for r in range(4)]
    assert findings_of(series(*raised), {}) == []


def test_attempts_of_one_launch_find_each_other(tmp_path: Path) -> None:
    def attempt(name: str, number: int, launch: str, **known: object) -> None:
        (tmp_path / name).mkdir()
        for rank in range(2):
            write_rank(tmp_path / name, state(rank, launch=launch, attempt=number, **known))

    attempt("run", 0, "a", ended="raised RuntimeError: a corrupt sample")
    attempt("run-2", 1, "a")
    attempt("run-3", 2, "a", ended="finished")
    attempt("run-4", 0, "b")  # a later launch into the same folder
    attempt("runner", 1, "c")
    assert [a.folder.name for a in earlier_attempts(tmp_path / "run-3")] == ["run", "run-2"]
    assert earlier_attempts(tmp_path / "run-4") == [] == earlier_attempts(tmp_path / "run")
    assert attempt_lines(earlier_attempts(tmp_path / "run-3")) == [
        "attempt 1: 500 updates in run; Ranks 0 and 1: raised RuntimeError: a corrupt sample",
        "attempt 2: 500 updates in run-2; Ranks 0 and 1: stopped or killed",
    ]


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = state(
        3,
        doing="all_reduce",
        at=Location("train.py", 4, function="f"),
        prints={8: "ab"},
        lines=[Spent(Location("train.py", 5), 0.5)],
    )
    write_rank(tmp_path, written)
    assert read_ranks([tmp_path]) == {3: written}
    assert [p.name for p in tmp_path.iterdir()] == ["rank3.json"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"rank": -1}',
        b'{"rank": "1"}',
        b'{"rank": 1, "at": {"path": 3}}',
        b'{"rank": 1, "met": [1]}',
        b'{"rank": 1, "written": 1e400}',
        b'{"rank": 1, "lines": [{"at": {"path": "a", "line": 1}, "share": "x"}]}',
        b"[" * 5000,
        b'{"rank": 1, "host": "' + b"x" * 300_000 + b'"}',
    ],
)
def test_what_is_no_state_is_left_out(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "rank1.json").write_bytes(body)
    assert read_rank(tmp_path / "rank1.json") is None and read_ranks([tmp_path]) == {}


def test_control_characters_do_not_come_through(tmp_path: Path) -> None:
    (tmp_path / "rank1.json").write_text(json.dumps({"rank": 1, "host": "a\x1b[31mb"}))
    known = read_rank(tmp_path / "rank1.json")
    assert known is not None and "\x1b" not in known.host

"""`fallline measure same`: planted differences, each with the update, the parameter, the operation and the cause known beforehand."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fallline.errors import UsageError
from fallline.instruments.same import measure_same
from fallline.instruments.same.compare import compare_updates, first_operation, load
from fallline.instruments.same.fingerprint import fingerprint, resolve, together
from fallline.instruments.same.record import Record
from fallline.instruments.same.sources import Draws
from fallline.instruments.script import Script, run_until


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- fingerprints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_one_changed_bit_is_another_fingerprint(dtype: torch.dtype) -> None:
    values = (torch.arange(2_000) % 100).to(dtype)
    other = values.clone()
    other.view(torch.uint8)[777] ^= 1
    swapped = values.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    first, same, changed, moved = resolve(
        [fingerprint(t) for t in (values, values.clone(), other, swapped)]
    )
    assert first == same
    assert len({first, changed, moved}) == 3


def test_views_are_read_as_they_are_and_chunks_do_not_matter() -> None:
    wide = torch.arange(3 << 20, dtype=torch.float32)
    assert resolve([fingerprint(wide[::3])]) == resolve([fingerprint(wide[::3].clone())])
    other = wide.clone()
    other[-1] += 1
    assert resolve([fingerprint(wide)]) != resolve([fingerprint(other)])
    assert resolve([fingerprint(torch.tensor([0.0]))]) != resolve(
        [fingerprint(torch.tensor([-0.0]))]
    )
    assert fingerprint(torch.empty(0)) == 0


def test_several_in_one_know_their_order() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    assert resolve([together([fingerprint(a), fingerprint(b)])]) != resolve(
        [together([fingerprint(b), fingerprint(a)])]
    )


# -- two runs in this process ---------------------------------------------------------------------------------------


def recorded(train: Callable[[], None], updates: int = 5) -> list[dict[str, Any]]:
    file = io.StringIO()
    record = Record(file, until=updates)
    draws = Draws(record.drawn)
    draws.install()
    try:
        ran = run_until(train, record, updates=updates)
    finally:
        draws.remove()
    if ran.error is not None:
        raise ran.error
    return [json.loads(line) for line in file.getvalue().splitlines()]


def loop(spoil: Callable[[int, nn.Module, Tensor], Tensor], steps: int = 5) -> Callable[[], None]:
    """Training with something planted between the forward pass and the loss."""

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            out = model(torch.randn(8, 4))
            loss = spoil(step, model, out).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def test_the_same_twice_is_the_same() -> None:
    a, b = (recorded(loop(lambda step, model, out: out)) for _ in range(2))
    assert compare_updates(a, b) is None and first_operation(a, b) is None
    assert [row["update"] for row in a if "parameters" in row] == [0, 1, 2, 3, 4]
    phases = {e["phase"] for row in a for e in row.get("operations", ()) if "op" in e}
    assert phases == {"forward", "backward", "step"}


def test_a_recorded_run_trains_to_the_same_bits() -> None:
    trained: list[Tensor] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            loss = model(torch.randn(8, 4)).square().mean() * random.random()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        trained.append(torch.get_rng_state())

    random.seed(1)
    train()
    random.seed(1)
    recorded(train, updates=99)
    assert torch.equal(trained[0], trained[2]) and torch.equal(trained[1], trained[3])


def test_operations_are_kept_up_to_the_update_that_was_asked_for() -> None:
    file = io.StringIO()
    run_until(loop(lambda step, model, out: out), Record(file, until=1), updates=4)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert ["operations" in row for row in rows if "parameters" in row] == [
        True,
        True,
        False,
        False,
    ]
    file = io.StringIO()
    run_until(loop(lambda step, model, out: out), Record(file, until=9, seconds=0.0), updates=2)
    first = json.loads(file.getvalue().splitlines()[0])
    assert first["full"]  # no time was given for it


def here(function: Callable[..., Any], text: str) -> int:
    """The line of this file in `function` that holds `text`."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()[first - 1 :]
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_number_of_pythons_random_is_found_with_its_line() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out * random.random() if step == 3 else out

    random.seed()
    a, b = (recorded(loop(spoil)) for _ in range(2))
    difference, operation = compare_updates(a, b), first_operation(a, b)
    assert difference is not None and (difference.update, difference.stage) == (3, "losses")
    assert operation is not None and (operation.kind, operation.op) == ("number", "mul")
    assert operation.line == here(spoil, "random.random()")
    assert [(d.source, d.line) for d in operation.draws] == [("python", operation.line)]


def test_one_parameters_gradient_is_named() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 2:
            bias = model[2].bias  # type: ignore[index]
            bias.register_hook(lambda grad: grad + time.perf_counter())
        return out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    difference, operation = compare_updates(a, b), first_operation(a, b)
    assert difference is not None
    assert (difference.update, difference.stage, difference.parameters) == (
        2,
        "gradients",
        ["2.bias"],
    )
    assert operation is not None and (operation.kind, operation.phase) == ("number", "backward")
    assert operation.draws[0].source == "clock"


def test_data_that_no_operation_made_is_told_apart() -> None:
    numpy = pytest.importorskip("numpy")

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        noise = torch.from_numpy(numpy.random.default_rng().normal(size=(8, 1)).astype("float32"))
        return out + noise if step == 1 else out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.update) == ("data", 1)
    assert operation.draws[0].source == "numpy"


def test_torchs_own_draws_are_told_apart() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 1:
            torch.seed()
        return nn.functional.dropout(out, 0.5)

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.update) == ("random", 1)


def test_an_operation_with_the_same_inputs_and_other_results_is_to_blame() -> None:
    @torch.library.custom_op("fallline_test::shaky", mutates_args=())
    def shaky(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() + x.numpy().dtype.type(time.time_ns() % 1000))

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out + shaky(out.detach()) if step == 2 else out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None
    assert (operation.kind, operation.op, operation.update) == ("kernel", "shaky", 2)
    assert operation.line == here(spoil, "shaky(out")


def test_memory_that_nobody_wrote_is_told_apart() -> None:
    count = [0]

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step != 1:
            return out
        unwritten = torch.empty(8, 1)
        count[0] += 1
        unwritten.numpy()[:] = count[
            0
        ]  # what happens to be there, and another thing in the next run
        return out + unwritten

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.op) == ("unwritten", "add")


def test_memory_that_is_written_before_it_is_read_is_fine() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out + torch.empty(8, 1).normal_() + torch.empty_like(out).zero_()

    a, b = (recorded(loop(spoil)) for _ in range(2))
    assert first_operation(a, b) is None


def test_another_order_is_told_apart() -> None:
    turn = [0]

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 1:
            turn[0] += 1
            for name in ("tanh", "sin") if turn[0] == 1 else ("sin", "tanh"):
                out = getattr(out, name)()
        return out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.op) == ("order", "tanh")


def test_a_record_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text('{"update": 0, "parameters": {}}\n{"update": 1, "par')
    assert [row["update"] for row in load(path)] == [0]
    assert load(tmp_path / "nowhere") == []


# -- whole runs, in processes of their own -----------------------------------------------------------------------------

HEAD = """\
import os, random, sys, time
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    x = torch.randn(8, 4)
"""
TAIL = """\
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(folder: Path, planted: str, head: str = HEAD, tail: str = TAIL) -> Script:
    path = folder / "train.py"
    path.write_text(head + textwrap.indent(planted, "    ") + tail)
    return Script(str(path))


@pytest.mark.slow
def test_the_verb_names_update_line_and_cause(tmp_path: Path) -> None:
    script(tmp_path, "if step == 7: x = x * random.random()\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fallline",
            "measure",
            "same",
            "--updates",
            "9",
            "--output-format",
            "json",
            "train.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["same"], answer["difference"]["update"], answer["updates"]) == (False, 7, 9)
    assert (answer["operation"]["kind"], answer["operation"]["line"]) == ("number", 10)
    assert (answer["cause"]["source"], answer["cause"]["confirmed"], answer["cause"]["line"]) == ("python", True, 10)  # fmt: skip
    assert answer["difference"]["parameters"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.slow
def test_the_order_of_a_set_is_found_by_pinning_it(tmp_path: Path) -> None:
    planted = "for name in {'sin', 'tanh', 'sigmoid', 'exp', 'cos', 'erf', 'relu', 'neg'}: x = getattr(x, name)()\n"
    found = measure_same(script(tmp_path, planted), updates=2)
    assert found.operation is not None and found.operation.kind in ("order", "path")
    assert found.operation.line == 10
    assert found.cause is not None and (found.cause.source, found.cause.confirmed) == ("hash", True)
    assert "sorted" in found.text()


WORKERS = """\
import numpy, torch
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.from_numpy(numpy.random.default_rng().normal(size=4).astype("float32"))
def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Noisy(), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
if __name__ == "__main__": main()
"""


@pytest.mark.slow
def test_what_a_loaders_worker_draws_is_found_by_pinning_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    found = measure_same(str(tmp_path / "train.py"), updates=2)
    assert found.difference is not None and (found.difference.update, found.difference.stage) == (0, "batches")  # fmt: skip
    assert found.operation is not None and (found.operation.kind, found.operation.op) == ("data", "linear")  # fmt: skip
    assert found.cause is not None and (found.cause.source, found.cause.confirmed) == ("numpy", True)  # fmt: skip
    assert found.tried == {"numpy": True}


@pytest.mark.slow
def test_the_same_bits_are_said_and_the_results_are_the_scripts_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    show = "    print(f'{loss.item():.17g}')\n"
    target = script(tmp_path, "", tail=TAIL + show)
    plain = subprocess.run(
        [sys.executable, target.path], capture_output=True, text=True, check=True
    )
    found = measure_same(target, updates=5)
    assert found.same and found.updates == 5 and found.runs == 2
    assert "both runs give the same bits in 5 updates" in found.text()
    assert capfd.readouterr().err.splitlines()[:5] == plain.stdout.splitlines()[:5]


RESUMED = """\
import sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
begin = 0
if "--resume" in sys.argv:
    saved = torch.load("last.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    OPTIMIZER
    torch.set_rng_state(saved["random"])
    begin = saved["step"]
for step in range(begin, 30):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1,
                "random": torch.get_rng_state()}, "last.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("restores", [True, False])
def test_straight_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restores: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    line = 'optimizer.load_state_dict(saved["optimizer"])' if restores else "pass"
    (tmp_path / "train.py").write_text(RESUMED.replace("OPTIMIZER", line))
    found = measure_same("train.py", updates=8, resume=["--resume"], stop=4)
    assert found.resumed_at == 3
    assert found.same is restores
    if not restores:
        assert found.difference is not None and found.difference.stage == "state"
        assert found.difference.update == 4
        assert found.cause is not None and "the optimizer's state" in found.cause.text
        assert (
            "generator" not in found.cause.text
        )  # torch's was restored, nobody drew from the others


DDP = """\
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(30, 8, 4)
for batch in data:
    share = batch[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    model(share).square().mean().backward()
    optimizer.step()
dist.barrier()  # nobody leaves while a neighbour still reads
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_one_rank_and_two(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    found = measure_same(str(tmp_path / "train.py"), updates=4, ranks=2)
    assert not found.same and found.difference is not None
    assert found.difference.update == 0 and found.difference.stage == "losses"
    assert found.difference.last_relative is not None and found.difference.last_relative < 1e-5
    assert "as rounding does" in found.text()
    # the first operation that is not the same is the forward pass, on half of the batch
    assert found.operation is not None and (found.operation.op, found.operation.line) == (
        "linear",
        13,
    )
    assert found.operation.detail == "shapes [[8, 1]] against [[4, 1]]"


@pytest.mark.slow
def test_ctrl_c_leaves_a_partial_result(tmp_path: Path) -> None:
    script(tmp_path, "if step == 3: os.kill(os.getppid(), 2); time.sleep(60)\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fallline",
            "measure",
            "same",
            "--output-format",
            "json",
            "train.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["partial"], answer["updates"]) == (True, 3)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_that_fails_ends_as_ever(tmp_path: Path) -> None:
    script(tmp_path, "if step == 3: raise ValueError('mine')\n")
    done = subprocess.run(
        [sys.executable, "-m", "fallline", "measure", "same", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr and "fallline/" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 1}, "give 2 or more"),
        ({"ranks": 2, "resume": ["-r"]}, "one at a time"),
        ({"resume": ["-r"], "stop": 20}, "between the first and the last"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        measure_same(script(tmp_path, ""), updates=20, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_atomic_sum_on_a_gpu_is_found(tmp_path: Path) -> None:
    planted = """\
x = x.cuda()
index = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
noise = torch.randn(1 << 20, device="cuda")
x = x + torch.zeros(1, device="cuda").index_add(0, index, noise)
model.cuda()
"""
    found = measure_same(script(tmp_path, planted), updates=3)
    assert found.operation is not None
    assert (found.operation.kind, found.operation.op) == ("kernel", "index_add")
    assert found.cause is not None and (found.cause.source, found.cause.confirmed) == (
        "kernels",
        True,
    )

"""`fallline measure same` on whole runs, in processes of their own: update, line and cause are known beforehand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from fallline.errors import UsageError
from fallline.instruments.same import measure_same
from fallline.instruments.script import Script


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


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

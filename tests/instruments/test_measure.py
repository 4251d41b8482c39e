"""`fallline measure` as a command: what every verb promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fallline.cli.measure import available
from fallline.instruments.frame import Progress, human_bytes, human_seconds
from gloo import run_ranks

TRAIN = """\
import sys
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    loss = model(torch.randn(8, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.17g}", *sys.argv[1:])
"""


NO_TRIES = {"memory": "--try-for", "time": "--loader-for"}


def measure(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fallline", "measure", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_memory_and_time_are_verbs() -> None:
    assert {"memory", "time"} <= set(available())


@pytest.mark.parametrize("verb", ["memory", "time"])
def test_standard_output_is_the_measurement_and_the_losses_are_the_scripts_own(
    folder: Path, verb: str
) -> None:
    plain = subprocess.run(
        [sys.executable, "train.py", "--lr", "3"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    done = measure(
        folder,
        *(verb, "--output-format", "json", "--updates", "9", NO_TRIES[verb], "0"),
        *("--out", "measured", "train.py", "--lr", "3"),
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == json.loads((folder / "measured" / f"{verb}.json").read_text())
    assert (answer["updates"], answer["partial"]) == (9, False)
    losses = [line for line in done.stderr.splitlines() if line.endswith("--lr 3")]
    assert losses == plain.stdout.splitlines()[:9]


@pytest.mark.parametrize("verb", ["memory", "time"])
def test_torch_is_imported_by_the_script_which_may_have_something_to_set_first(
    folder: Path, verb: str
) -> None:
    first = (
        "import os, sys\nassert 'torch' not in sys.modules\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    )
    last = "print('threads', torch.get_num_threads())\n"
    text = TRAIN.replace("torch.set_num_threads(1)\n", last).replace("range(1000)", "range(4)")
    (folder / "train.py").write_text(first + text)
    done = measure(
        folder,
        verb,
        "--updates",
        "3",
        NO_TRIES[verb],
        "0",
        "train.py",
        env={**os.environ, "OMP_NUM_THREADS": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "threads 1" in done.stderr


def test_a_script_without_torch_is_no_reason_to_fail(folder: Path) -> None:
    (folder / "train.py").write_text("print('nothing to train')\n")
    done = measure(folder, "memory", "train.py")
    assert done.returncode == 0
    assert done.stdout.startswith("memory: no tensor was seen.\n")
    assert "without an update" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["time"], ["precision"], ["clip", "--noise-scale"], ["clip", "--lr-range"]]
)
def test_a_script_that_never_steps_is_said_to_be_so(folder: Path, arguments: list[str]) -> None:
    (folder / "train.py").write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n")
    done = measure(folder, *arguments, "train.py")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "without an update" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["precision"], ["clip", "--noise-scale"]])
def test_a_script_that_fails_at_once_keeps_its_status(folder: Path, arguments: list[str]) -> None:
    (folder / "train.py").write_text("import sys\nsys.exit(7)\n")
    done = measure(folder, *arguments, "train.py")
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    assert "the script failed after 0 updates" in done.stderr


@pytest.mark.parametrize("verb", ["memory", "time"])
def test_ctrl_c_leaves_a_partial_result(folder: Path, verb: str) -> None:
    (folder / "train.py").write_text(
        TRAIN + "    if step == 6:\n        import os; os.kill(os.getpid(), 2)\n"
    )
    done = measure(
        folder,
        *(verb, "--output-format", "json", "--updates", "20", "train.py"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["updates"], answer["partial"]) == (7, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["memory", "time"])
def test_a_script_that_fails_ends_as_ever(folder: Path, verb: str) -> None:
    (folder / "train.py").write_text(TRAIN + "    if step == 5: raise ValueError('mine')\n")
    done = measure(folder, verb, "train.py")
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "fallline/" not in done.stderr
    assert "partial: the script ended after 6 updates" in done.stdout


def test_without_torch_one_sentence_says_so(folder: Path) -> None:
    code = """
        import sys
        class Without:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "torch" else found(name, *a)
        sys.meta_path.insert(0, Without())
        from fallline.cli.main import main
        sys.exit(main(["measure", "memory", "train.py"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fallline measure: `fallline measure memory` needs torch")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("memory", "nowhere.py"), "cannot open nowhere.py"),
        (("memory", "--with", "magic", "train.py"), "there is no remedy 'magic'"),
        (("time", "--updates", "0", "train.py"), "'0' is not a number of at least 1"),
        (("time", "--loader-for", "soon", "train.py"), "'soon' is not a number of seconds"),
        (("nothing",), "invalid choice"),
    ],
)
def test_wrong_usage_is_two(fallline: Callable[..., Any], arguments: Any, says: str) -> None:
    Path("train.py").write_text(TRAIN)
    done = fallline("measure", *arguments)
    assert done.status == 2
    assert says in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o500)
    done = measure(folder, "memory", "--updates", "4", "--out", "locked/x", "train.py")
    assert done.returncode == 2
    assert "cannot write to locked/x" in done.stderr


@pytest.mark.slow
def test_under_torchrun_rank_0_speaks_and_communication_is_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """\
            import torch
            import torch.distributed as dist
            from torch import nn
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            model = nn.parallel.DistributedDataParallel(nn.Linear(256, 1024))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100):
                optimizer.zero_grad()
                model(torch.randn(4, 256)).mean().backward()
                optimizer.step()
            """
        )
    )
    done = run_ranks(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "-m",
            "fallline",
            "measure",
            "time",
            "--output-format",
            "json",
            "train.py",
        ],
        cwd=tmp_path,
    )
    answer = json.loads(done.stdout)  # one answer, not two
    assert answer["profiled"]["communication"] > 0


class Terminal:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal, self.text = is_terminal, ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_speaks_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    now = 0.0
    monkeypatch.setattr("fallline.instruments.frame.time.monotonic", lambda: now)
    stream: Any = Terminal(is_terminal)
    with Progress("measuring", 10, stream) as progress:
        for done in range(10):
            now = float(done)
            progress.advance(done)
            assert bool(stream.text) == (now >= 2)
    if is_terminal:
        assert "measuring 3 of 10 (3 s)" in stream.text
        assert stream.text.endswith("\r\x1b[K")
    else:
        assert stream.text.splitlines() == [
            f"fallline: measuring {n} of 10 ({n} s)" for n in (2, 4, 8)
        ]


def test_sizes_and_times_in_their_unit() -> None:
    assert [human_bytes(n) for n in (12, 2048, 3 << 20, 5 << 30)] == [
        "12 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
    assert [human_seconds(s) for s in (2e-6, 0.0031, 2.5)] == ["2 µs", "3.1 ms", "2.5 s"]

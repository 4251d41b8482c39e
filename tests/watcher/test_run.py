"""`fallline run` behaves like `python`: arguments, output, exit status, exceptions, processes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gloo import ATTEMPTS, aborted

TRAIN = """
import sys, torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(UPDATES):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


def fallline(folder: Path, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fallline", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, **more)  # type: ignore[call-overload,no-any-return]


def plain(folder: Path, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )  # type: ignore[call-overload,no-any-return]


def own_words(stderr: str) -> tuple[list[str], str]:
    """What fallline said, and the rest."""
    lines = stderr.splitlines(keepends=True)
    said = [line.rstrip() for line in lines if line.startswith("fallline: ")]
    return said, "".join(line for line in lines if not line.startswith("fallline: "))


def test_a_program_without_torch_runs_as_ever(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nprint(sys.argv, __name__, __file__, sys.path[0])\nprint(sys.stdin.read(), end='')\n"
        "print('torch' in sys.modules)\nsys.exit(3)  # it has an option --out\n"
    )
    arguments = ("program.py", "a", "--out", "b")
    watched, bare = (
        fallline(tmp_path, *arguments, input="typed"),
        plain(tmp_path, *arguments, input="typed"),
    )
    said, rest = own_words(watched.stderr)
    assert (watched.returncode, watched.stdout, rest) == (3, bare.stdout, bare.stderr)
    assert len(said) == 2 and said[1].startswith("fallline: torch was never imported, so ")


def test_a_script_without_an_update_says_so_and_leaves_empty_findings(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    watched = fallline(tmp_path, "--out", "run", "script.py")
    assert (watched.returncode, watched.stdout) == (0, "tensor(2.)\n")
    assert watched.stderr.splitlines() == [
        "fallline: watching script.py; the run is recorded in run",
        "fallline: no optimizer stepped, so there is nothing to report; run/findings.json is empty",
    ]
    assert (tmp_path / "run" / "findings.json").read_text() == "[]\n"
    shown = plain(tmp_path, "-m", "fallline", "report", "run")
    assert shown.returncode == 0 and "The run made no update of an optimizer" in shown.stdout


def test_a_watcher_that_cannot_start_says_so_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nsys.modules['fallline.watcher.session'] = None\nimport torch\nprint('ran')\n"
    )
    watched = fallline(tmp_path, "--out", "run", "script.py")
    assert (watched.returncode, watched.stdout) == (0, "ran\n")
    start, failed, end = watched.stderr.splitlines()
    assert start == "fallline: watching script.py; the run is recorded in run"
    assert failed.startswith("fallline: cannot watch this run (ModuleNotFoundError: ")
    assert end.startswith("fallline: this run was not watched (ModuleNotFoundError: ")
    assert not (tmp_path / "run").exists(), "an empty findings.json would look like an all-clear"


def test_findings_are_said_while_the_script_runs(tmp_path: Path) -> None:
    """The script waits until its own log has both: an error of the loop, and an infinite loss whose updates are skipped."""
    text = TRAIN.replace("UPDATES", "600").replace("    optimizer.zero_grad()\n", "")
    text = text.replace("    loss.backward()", "    loss = loss / (i < 8)\n    loss.backward()")
    wait = """
    time.sleep(0.1)
    said = open("log").read()
    if "train.py:12: FL106 zero-grad-missing: " in said and "train.py:11: FL620 loss-nonfinite: " in said:
        print("seen", said.count("FL106"), said.count("FL620"))
        break
"""
    (tmp_path / "train.py").write_text("import time\n" + text.lstrip("\n") + wait.lstrip("\n"))
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True, timeout=120
        )
    assert done.stdout == "seen 1 1\n", (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys\nsys.exit('a reason')\n", 1),
        ("print('x'\n", 1),
        (
            "def f():\n    raise ValueError('inside')\ntry:\n    f()\nexcept ValueError as e:\n    raise KeyError(1) from e\n",
            1,
        ),
    ],
)
def test_exceptions_look_as_without_us(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "bad.py").write_text(text)
    watched, bare = fallline(tmp_path, "bad.py"), plain(tmp_path, "bad.py")
    assert watched.returncode == bare.returncode == status
    assert own_words(watched.stderr)[1] == bare.stderr


def test_a_training_script_that_raises_keeps_its_traceback_and_its_findings(tmp_path: Path) -> None:
    text = (
        TRAIN.replace("UPDATES", "6").replace("    optimizer.zero_grad()\n", "")
        + "loss.backward()\n"
    )
    (tmp_path / "train.py").write_text(text)
    watched, bare = fallline(tmp_path, "--out", "run", "train.py"), plain(tmp_path, "train.py")
    assert watched.returncode == bare.returncode == 1
    assert own_words(watched.stderr)[1].startswith(bare.stderr)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert [(f["code"], f["line"], f["path"]) for f in found] == [("FL106", 11, "train.py")]


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    watched = fallline(tmp_path, "nothing.py")
    assert watched.returncode == 2
    assert watched.stderr == "fallline run: cannot open nothing.py: No such file or directory\n"


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("NAME = 'other'\n")
    (tmp_path / "package" / "main.py").write_text(
        "import sys\nfrom .other import NAME\nprint(NAME, __name__, __package__, __spec__.name, sys.argv[1:])\n"
    )
    watched, bare = (
        fallline(tmp_path, "-m", "package.main", "x"),
        plain(tmp_path, "-m", "package.main", "x"),
    )
    assert watched.stdout == bare.stdout
    assert watched.stdout.startswith("other __main__ package package.main ['x']")
    assert fallline(tmp_path, "-m", "package.nothing").returncode == 2


MAIN = """
import os, sys
kept: int = 3
import beside
print(sys.path[:2], sys.argv, beside.__file__, sorted(os.environ), __file__)
print(sorted((k, v) for k, v in globals().items() if isinstance(v, str | dict | None)))
print(type(__loader__).__name__, __spec__ and __spec__.name, __builtins__.__name__, type(sys.modules["__main__"]))
import subprocess
print(subprocess.run(["env"], capture_output=True, text=True).stdout.count("FALLLINE"))
"""


@pytest.mark.parametrize(
    "way", [["link.py"], ["real/main.py", "x"], ["real"], ["links/real"], ["-m", "real.main"]]
)
@pytest.mark.parametrize("safe", ["", "1"])
def test_a_script_sees_what_it_sees_under_python(tmp_path: Path, way: list[str], safe: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    for name in ("main.py", "__main__.py"):
        (tmp_path / "real" / name).write_text(MAIN)
    for folder in (tmp_path, tmp_path / "real"):
        (folder / "beside.py").write_text("")
    (tmp_path / "link.py").symlink_to("real/main.py")
    (tmp_path / "links" / "real").symlink_to("../real")
    source = os.pathsep.join([str(tmp_path), *sys.path]) if safe else os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONSAFEPATH": safe}
    watched, bare = (
        fallline(tmp_path, *way, env=environment),
        plain(tmp_path, *way, env=environment),
    )
    assert (watched.stdout, watched.returncode) == (bare.stdout, bare.returncode)


def test_two_runs_into_one_folder_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("UPDATES", "3"))
    for _ in range(2):
        watched = fallline(tmp_path, "--out", "run", "train.py")
        assert watched.returncode == 0
    assert (tmp_path / "run" / "findings.json").exists()
    assert (tmp_path / "run-2" / "findings.json").exists()
    assert "recorded in run-2\n" in watched.stderr


def test_an_interrupt_ends_it_as_it_ends_python(tmp_path: Path) -> None:
    text = (
        TRAIN.replace("UPDATES", "5") + "print('ready', flush=True)\nimport time\ntime.sleep(60)\n"
    )
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts what it puts into the background deaf to interrupts, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert json.loads((tmp_path / "run" / "findings.json").read_text()) == []


DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def scale(x):
    return x * 0.5


def work(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    losses = []
    for i in range(6):
        optimizer.zero_grad()
        loss = scale(model(torch.randn(3, 4)).pow(2).mean())
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL101
        losses.append(loss.item().hex())
    lines = [rank, losses, [p.detach().sum().item().hex() for p in model.parameters()], torch.rand(1).item()]
    open(f"{sys.argv[1]}-{rank}", "w").write(str(lines))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        mp.spawn(work, args=(2,), nprocs=2)
"""


def port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def ranks_of(
    folder: Path, *arguments: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder / "run", ignore_errors=True)
        done = plain(folder, *arguments, env={**env, "MASTER_PORT": port()})
        if not aborted(done.stderr):
            break
    return done


@pytest.mark.slow
@pytest.mark.parametrize("way", ["spawn", "torchrun"])
def test_two_ranks_give_the_same_bits_and_one_findings_file(tmp_path: Path, way: str) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port(),
        "OMP_NUM_THREADS": "1",
    }
    launch = (
        []
        if way == "spawn"
        else ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port()]
    )
    bare = ranks_of(tmp_path, *launch, "train.py", "plain", env=environment)
    assert bare.returncode == 0, bare.stderr
    run = ("-m", "fallline", "run", "--out", "run", "train.py", "watched")
    watched = ranks_of(tmp_path, *launch, *run, env=environment)
    assert watched.returncode == 0, watched.stderr
    for rank in (0, 1):
        assert (tmp_path / f"watched-{rank}").read_text() == (
            tmp_path / f"plain-{rank}"
        ).read_text()
    assert sorted(p.name for p in (tmp_path / "run").glob("rank*.sqlite")) == [
        "rank0.sqlite",
        "rank1.sqlite",
    ]
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    line = next(n for n, text in enumerate(DISTRIBUTED.split("\n"), 1) if "# FL101" in text)
    assert [(f["code"], f["line"]) for f in found] == [("FL101", line)]


def test_a_forked_process_that_trains_is_watched(tmp_path: Path) -> None:
    text = (
        "import multiprocessing as mp, torch\n"
        "def work():\n"
        + "\n".join("    " + line for line in TRAIN.replace("UPDATES", "6").split("\n"))
        + "\n"
        "    print('done', flush=True)\n"
        "process = mp.get_context('fork').Process(target=work)\nprocess.start()\nprocess.join()\nprint(process.exitcode)\n"
    )
    (tmp_path / "train.py").write_text(text.replace("        optimizer.zero_grad()\n", ""))
    watched = fallline(tmp_path, "--out", "run", "train.py")
    assert watched.stdout == "done\n0\n"
    assert [f["code"] for f in json.loads((tmp_path / "run" / "findings.json").read_text())] == [
        "FL106"
    ]


def test_environment_set_before_torch_still_counts(tmp_path: Path) -> None:
    text = "import os, sys\nassert 'torch' not in sys.modules\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    (tmp_path / "program.py").write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    assert fallline(tmp_path, "program.py", env=environment).stdout == "1\n"


def test_a_reader_of_the_run_folder_does_not_disturb_its_end(tmp_path: Path) -> None:
    """A file that somebody reads stays in its journal mode; that is not a reason for a warning."""
    read = (
        "\nimport glob, sqlite3, time\ntime.sleep(3)\n"
        "reader = sqlite3.connect(glob.glob('run/*.sqlite')[0])\nreader.execute('begin')\n"
        "print(reader.execute('select count(*) from meta').fetchone()[0] > 0)\n"
    )
    (tmp_path / "train.py").write_text(TRAIN.replace("UPDATES", "6") + read)
    watched = fallline(tmp_path, "--out", "run", "train.py")
    assert (watched.returncode, watched.stdout) == (0, "True\n")
    assert len(own_words(watched.stderr)[0]) == 1, watched.stderr
    assert json.loads((tmp_path / "run" / "findings.json").read_text()) == []


def test_a_full_disk_costs_one_warning_and_no_finding(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # of any file

    late = TRAIN.replace("UPDATES", "6").replace(
        "optimizer.step()",
        "optimizer.step()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    )
    (tmp_path / "train.py").write_text(late + "print(loss.item())\n")
    whole = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # not half a module for the next test
    watched = fallline(tmp_path, "--out", "run", "train.py", preexec_fn=no_room, env=whole)
    assert watched.returncode == 0
    assert watched.stdout == plain(tmp_path, "train.py").stdout
    assert watched.stderr.count("fallline: cannot write the run") == 1
    assert "FL101 clip-after-step" in watched.stderr


def test_a_read_only_place_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("UPDATES", "3") + "print(loss.item())\n")
    (tmp_path / "file").write_text("not a folder")
    watched = fallline(tmp_path, "--out", "file/run", "train.py")
    assert watched.returncode == 0
    assert watched.stdout == plain(tmp_path, "train.py").stdout
    first, then, *_ = watched.stderr.splitlines()
    assert first == "fallline: cannot write the run to file/run (Not a directory)"
    assert then.startswith("fallline: watching train.py; the run is recorded in ")
    assert watched.stderr.count("file/run") == 1
    assert "Traceback" not in watched.stderr and "not a run folder" not in watched.stderr

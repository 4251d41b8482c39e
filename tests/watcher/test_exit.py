"""A watched script ends as it does under `python`: the interpreter's own order, and the run is concluded after all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

UPDATES = """
import torch

def updates(count):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        model(torch.randn(3, 4)).square().mean().backward()  # not cleared
        optimizer.step()

"""

# None of these imports torch, so each takes a moment; the one after the name says what it shows.
SCRIPTS = {
    "an executor left open": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
print(pool.submit(lambda: "worked").result())
""",
    "a thread that ends late": """
import threading, time
def late():
    time.sleep(0.5)
    print("late")
threading.Thread(target=late).start()
print("main is over")
""",
    "a daemon thread": """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("main is over")
""",
    "a pool of processes left open": """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    print(pool.submit(len, "four").result())
""",
    "a process that nobody joined": """
import multiprocessing, time
def work():
    time.sleep(0.5)
    print("worked", flush=True)
if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work).start()
    print("main is over", flush=True)
""",
    "exit handlers in their order": """
import atexit
atexit.register(print, "last")
import multiprocessing
atexit.register(print, "first")
def work():
    import time
    time.sleep(0.5)
    print("a process, waited for in between", flush=True)
if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work).start()
""",
    "an exit handler that raises": """
import atexit
def fail():
    raise ValueError("at exit")
atexit.register(fail)
""",
    "sys.exit in a thread": """
import sys, threading
thread = threading.Thread(target=sys.exit, args=(5,))
thread.start()
thread.join()
print("main goes on")
""",
    "sys.exit with a thread running": """
import sys, threading, time
def late():
    time.sleep(0.3)
    print("late")
threading.Thread(target=late).start()
sys.exit(3)
""",
    "an exception with an executor open": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
raise KeyError("gone")
""",
    "a fork that comes to its own end": """
import os, sys
if os.fork() == 0:
    print("child", flush=True)
else:
    os.wait()
    print("parent")
""",
}


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=400
    )


def fallline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "fallline", "run", "--out", "run", *arguments)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_ends_as_under_python(tmp_path: Path, name: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPTS[name])
    bare, watched = python(tmp_path, "script.py"), fallline(tmp_path, "script.py")
    assert (watched.stdout, watched.returncode) == (bare.stdout, bare.returncode)
    said = watched.stderr.splitlines(keepends=True)
    assert said[0].startswith("fallline: watching script.py; the run is recorded in run")
    assert said[-1].startswith("fallline: torch was never imported, so there is nothing to report")
    assert re.sub("0x[0-9a-f]+", "0x", "".join(said[1:-1])) == re.sub(
        "0x[0-9a-f]+", "0x", bare.stderr
    )
    assert (tmp_path / "run" / "findings.json").read_text() == "[]\n"


def codes(folder: Path) -> list[str]:
    return [f["code"] for f in json.loads((folder / "run" / "findings.json").read_text())]


@pytest.mark.parametrize(
    "end",
    [
        "import threading\nthreading.Thread(target=updates, args=(6,)).start()\n",
        "import atexit\natexit.register(updates, 6)\n",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(updates, 6)\n",
    ],
    ids=["thread", "exit-handler", "executor"],
)
def test_what_trains_after_the_last_line_is_in_the_report(tmp_path: Path, end: str) -> None:
    (tmp_path / "train.py").write_text(UPDATES + end)
    watched = fallline(tmp_path, "train.py")
    assert watched.returncode == 0, watched.stderr
    assert codes(tmp_path) == ["FL106"]
    assert "FL106 zero-grad-missing" in watched.stderr


@pytest.mark.slow
def test_a_compiled_script_ends(tmp_path: Path) -> None:
    """inductor keeps a pool of workers, which nobody closes."""
    text = """
import torch
model = torch.compile(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
print("done")
"""
    (tmp_path / "train.py").write_text(text)
    watched = fallline(tmp_path, "train.py")
    if watched.returncode != 0 and python(tmp_path, "train.py").returncode != 0:
        pytest.skip("torch.compile does not work on this machine")
    assert (watched.returncode, watched.stdout) == (0, "done\n"), watched.stderr
    assert codes(tmp_path) == []

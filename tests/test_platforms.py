"""Pythons, missing POSIX modules, no network, little memory: what the doors do there, looked at from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WRONG = """\
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
TRAIN = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def interpreter(version: str) -> str:
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    found = str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no Python {version} here")
    return found


def ran(*command: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, **options
    )  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_an_old_python_is_told_which_one_is_needed(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    done = ran(python, "-m", "fallline", "check", ".", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "fallline needs Python 3.11 or newer" in done.stderr and version in done.stderr
    library = ran(python, "-c", "import fallline", cwd=tmp_path)
    assert "ImportError: fallline needs Python 3.11 or newer" in library.stderr


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_check_on_every_python_that_is_here(tmp_path: Path, version: str) -> None:
    (tmp_path / "a.py").write_text(WRONG)
    done = ran(interpreter(version), "-m", "fallline", "check", ".", "--fix", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    fixed = (tmp_path / "a.py").read_text()
    assert fixed.index("clip_grad_norm_") < fixed.index("optimizer.step()")


_HIDDEN = """\
import os, sys
for name in ("resource", "fcntl", "pwd", "grp", "termios", "pty", "tty", "syslog"):
    sys.modules[name] = None
for name in ("fork", "getuid", "uname", "killpg", "sched_getaffinity", "mkfifo", "O_NONBLOCK", "getppid", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
from fallline.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("check", "."), 1), (("check", "a.py", "--fix"), 0), (("check", ".", "--output-format", "sarif"), 1),
        (("rule", "FL201"), 0), (("ask", "my loss is NaN"), 0), (("report", "run"), 2), (("skills", "out"), 0),
        (("prove", "--list", "FL104"), 0), (("completion", "bash"), 0),
    ],
)  # fmt: skip
def test_without_what_only_posix_has(
    tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    (tmp_path / "a.py").write_text(WRONG)
    done = ran(sys.executable, "-c", _HIDDEN, *arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert "mistake in fallline" not in done.stderr


_ALONE = """\
import socket, sys
def refused(*args, **kwargs):
    raise AssertionError(f"something was sent: {args} {kwargs}")
for name in ("connect", "connect_ex", "sendto", "sendmsg"):
    setattr(socket.socket, name, refused)
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refused
from fallline.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_nothing_is_sent_anywhere(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    for arguments in (
        ("check", "."),
        ("run", "--out", "r", "train.py"),
        ("report", "r"),
        ("ask", "my loss is NaN", "--code", "train.py", "--run", "r"),
        ("measure", "memory", "--updates", "2", "train.py"),
        ("rule", "FL201"),
    ):
        done = ran(sys.executable, "-c", _ALONE, *arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "something was sent" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_system_call_leaves_the_machine(tmp_path: Path) -> None:
    """The C library asks nscd on this machine who the user is, for torch: that is all, with us as without us."""
    (tmp_path / "train.py").write_text(TRAIN)
    for command in (("check", "."), ("run", "--out", "r", "train.py")):
        traced = ran("strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", "calls", sys.executable, "-m", "fallline", *command, cwd=tmp_path)  # fmt: skip
        if "ptrace" in traced.stderr.lower():
            pytest.skip("strace is not allowed here")
        calls = (tmp_path / "calls").read_text()
        assert "AF_INET" not in calls

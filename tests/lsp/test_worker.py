"""The process that reads: it ends when it is told to, whatever it is doing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from fallline.lsp.worker import Worker, WorkerError


def test_stopped_while_its_process_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    start = SpawnProcess.start
    started: list[SpawnProcess] = []

    def stopped_meanwhile(process: SpawnProcess) -> None:
        worker.stop()
        start(process)
        started.append(process)

    monkeypatch.setattr(SpawnProcess, "start", stopped_meanwhile)
    with pytest.raises(WorkerError, match="shutting down"):
        worker.findings(str(tmp_path), {})
    (process,) = started
    process.join(300)
    assert process.exitcode is not None


def test_a_stopped_worker_refuses(tmp_path: Path) -> None:
    worker = Worker()
    worker.stop()
    with pytest.raises(WorkerError, match="shutting down"):
        worker.findings(str(tmp_path), {})


@pytest.mark.skipif(os.name != "posix", reason="processes are adopted on POSIX only")
def test_its_process_ends_when_the_server_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from fallline.lsp.worker import Worker\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker()\n"
        "    worker.findings(sys.argv[1], {})\n"
        "    print(worker._process.pid, flush=True)\n"
        "    worker._connection.send(('hang', sys.argv[1]))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "server.py").write_text(code)
    server = subprocess.run(
        [sys.executable, tmp_path / "server.py", tmp_path], capture_output=True, text=True
    )
    pid = int(server.stdout)
    for _ in range(300):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if (stat := Path(f"/proc/{pid}/stat")).exists() and stat.read_text().split()[2] == "Z":
            return  # dead; nobody here collects it
        time.sleep(0.1)
    raise AssertionError("the reading process lives on")

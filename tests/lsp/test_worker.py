"""The process that reads: it ends when it is told to, whatever it is doing."""

from __future__ import annotations

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
    with pytest.raises(WorkerError, match="going down"):
        worker.findings(str(tmp_path), {})
    (process,) = started
    process.join(300)
    assert process.exitcode is not None


def test_a_stopped_worker_refuses(tmp_path: Path) -> None:
    worker = Worker()
    worker.stop()
    with pytest.raises(WorkerError, match="going down"):
        worker.findings(str(tmp_path), {})

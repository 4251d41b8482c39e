"""Numbers and findings arrive at the real loggers, on this machine; a logger that fails or hangs is nobody's problem."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fallline.errors import UsageError
from fallline.finding import Finding

PROGRAM = """\
import os, sys, torch
from torch import nn
import fallline
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
{before}
with fallline.watch(model, optimizer, out="run", guard="skip", log={log}) as watching:
    for step in range(12):
        x = torch.randn(8, 4)
        loss = (model(x) - x[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # FL101
        {inside}
{after}
print("CODES", [f.code for f in watching.findings if f.severity != "info"])
"""


def run(tmp_path: Path, log: str, before: str = "", inside: str = "pass", after: str = "") -> str:
    """The program's output, in a process of its own: loggers keep threads and global state."""
    (tmp_path / "train.py").write_text(
        PROGRAM.format(log=log, before=before, inside=inside, after=after)
    )
    quiet = {
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        env={k: v for k, v in os.environ.items() if k != "WANDB_MODE"} | quiet,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stderr, done.stderr
    assert "CODES ['FL101']" in done.stdout, done.stdout
    return done.stdout


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    found = {tag: [(e.step, e.value) for e in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}
    found["texts"] = [e.step for tag in seen.Tags()["tensors"] for e in seen.Tensors(tag)]
    return found


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    run(tmp_path, '"tensorboard"')
    found = scalars(tmp_path / "run" / "tensorboard")
    for name in ("loss", "grad_norm", "lr", "skipped"):
        assert [step for step, _ in found[f"fallline/{name}"]] == list(range(12)), name
    # the program clips after its step: too late for the first update
    assert [step for step, _ in found["fallline/clip_share"]] == list(range(1, 12))
    assert found["fallline/lr"][0][1] == pytest.approx(0.05)
    assert len(found["texts"]) == 1


@pytest.mark.slow
def test_wandb_in_a_run_of_our_own_stays_here(tmp_path: Path) -> None:
    run(tmp_path, '"wandb"')
    rows, alerts = wandb_records(next(tmp_path.glob("run/wandb/offline-run-*/*.wandb")))
    assert [row["fallline/step"] for row in rows if "fallline/loss" in row] == list(range(12))
    assert alerts == ["FL101 clip-after-step"]


@pytest.mark.slow
def test_wandb_does_not_move_the_steps_of_the_scripts_own_run(tmp_path: Path) -> None:
    run(
        tmp_path,
        '"wandb"',
        before='import wandb; run = wandb.init(project="mine", dir=".", mode="offline")',
        inside='run.log({"mine": step}, step=step)',
        after="run.finish()",
    )
    rows, alerts = wandb_records(next(tmp_path.glob("wandb/offline-run-*/*.wandb")))
    assert [row["_step"] for row in rows if "mine" in row] == list(range(12))
    assert any("fallline/loss" in row for row in rows)
    assert alerts == ["FL101 clip-after-step"]


def wandb_records(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """History rows and titles of alerts in an offline run's file."""
    from wandb.proto import wandb_internal_pb2 as pb

    rows, alerts = [], []
    for data in wandb_chunks(path.read_bytes()):
        record = pb.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            rows.append({"_step": record.history.step.num, **row})
        elif record.HasField("alert"):
            alerts.append(record.alert.title)
    return rows, alerts


def wandb_chunks(data: bytes) -> Iterator[bytes]:
    """The records of the file: LevelDB's log format, in blocks of 32 KiB, behind a header of seven bytes."""
    block, position, parts = 32_768, 7, b""
    while position + 7 <= len(data):
        left = block - position % block
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
def test_mlflow_in_a_run_of_our_own(tmp_path: Path) -> None:
    run(
        tmp_path,
        '"mlflow"',
        before="""
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "sqlalchemy" else real(name, *rest)
""",
    )
    metrics = next(tmp_path.glob("run/mlruns/*/*/metrics/fallline/loss"))
    assert [int(line.split()[2]) for line in metrics.read_text().splitlines()] == list(range(12))
    assert (
        "FL101"
        in next(tmp_path.glob("run/mlartifacts/*/artifacts/fallline/findings.txt")).read_text()
    )


@pytest.mark.slow
def test_mlflow_joins_the_open_run(tmp_path: Path) -> None:
    run(
        tmp_path,
        '"mlflow"',
        before='import mlflow; mlflow.set_tracking_uri("file:" + os.path.abspath("mine")); mlflow.start_run()',
        after='mlflow.log_metric("own", 1.0); mlflow.end_run()',
    )
    folder = next(tmp_path.glob("mine/*/*/metrics"))
    assert (folder / "own").exists()
    assert len((folder / "fallline" / "grad_norm").read_text().splitlines()) == 12
    assert not (tmp_path / "run" / "mlruns").exists()


@pytest.mark.slow
def test_trackio_in_a_run_of_our_own(tmp_path: Path) -> None:
    run(tmp_path, '"trackio"')
    rows, alerts = trackio_records(tmp_path, "fallline")
    assert sorted(row["fallline/step"] for row in rows if "fallline/loss" in row) == list(range(12))
    assert alerts == ["FL101 clip-after-step"]


@pytest.mark.slow
def test_trackio_joins_the_open_run(tmp_path: Path) -> None:
    run(
        tmp_path,
        '"trackio"',
        before='import trackio; trackio.init("mine", embed=False)',
        inside='trackio.log({"mine": step})',
        after="trackio.finish()",
    )
    rows, alerts = trackio_records(tmp_path, "mine")
    assert sorted(row["mine"] for row in rows if "mine" in row) == list(range(12))
    assert sum("fallline/loss" in row for row in rows) == 12
    assert alerts == ["FL101 clip-after-step"]


@pytest.mark.slow
def test_opentelemetry_uses_the_scripts_provider(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        '"opentelemetry"',
        before="from opentelemetry import metrics\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader\n"
        "reader = InMemoryMetricReader()\n"
        "metrics.set_meter_provider(MeterProvider([reader]))",
        after="scope, = reader.get_metrics_data().resource_metrics[0].scope_metrics\n"
        "seen = {m.name: m.data.data_points[-1] for m in scope.metrics}\n"
        "print('SEEN', seen['fallline.step'].value, seen['fallline.findings'].attributes['code'])",
    )
    assert "SEEN 11.0 FL101" in said


def test_opentelemetry_sends_nothing_to_an_address_nobody_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fallline.integrations.opentelemetry import OpenTelemetry

    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        OpenTelemetry().open(tmp_path)


def trackio_records(tmp_path: Path, project: str) -> tuple[list[dict[str, Any]], list[str]]:
    import sqlite3

    (path,) = (tmp_path / "trackio").glob(f"{project}*.db")
    db = sqlite3.connect(path)
    rows = [json.loads(text) for (text,) in db.execute("select metrics from metrics")]
    alerts = [title for (title,) in db.execute("select title from alerts")]
    return rows, alerts


@pytest.mark.slow
def test_the_command_line_takes_a_logger(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        PROGRAM.format(log="None", before="", inside="pass", after="").replace('out="run", ', "")
        + "print(watching.findings)"
    )
    command = [
        sys.executable,
        "-m",
        "fallline",
        "run",
        "--out",
        "run",
        "--log",
        "tensorboard",
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(scalars(tmp_path / "run" / "tensorboard")["fallline/loss"]) == 12


# -- what can go wrong --------------------------------------------------------------------------------------------------


class Recorded:
    """A logger of the user's own."""

    def __init__(self, fails: bool = False) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.found: list[Finding] = []
        self.threads: set[str] = set()
        self.fails = fails

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise ConnectionError("no network")
        self.rows.append((step, numbers))

    def finding(self, finding: Finding) -> None:
        self.found.append(finding)


def train(tmp_path: Path, *loggers: Any, max_norm: float = 0.1) -> Any:
    import torch

    import fallline

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with fallline.watch(model, optimizer, out=tmp_path / "run", log=list(loggers)) as watching:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return watching


def test_a_logger_of_your_own(tmp_path: Path) -> None:
    logger = Recorded()
    watching = train(tmp_path, logger)
    assert [step for step, _ in logger.rows] == list(range(6))
    assert logger.rows[0][1]["fallline/lr"] == 0.05
    assert [f.code for f in logger.found] == [f.code for f in watching.findings]
    assert logger.threads == {"fallline-log"}


def test_measuring_the_norm_is_not_clipping(tmp_path: Path) -> None:
    logger = Recorded()
    watching = train(tmp_path, logger, max_norm=float("inf"))
    assert all("fallline/clip_share" not in numbers for _, numbers in logger.rows)
    assert "clipped" not in watching.summary(io.StringIO())


def test_a_logger_that_fails_is_switched_off_and_says_so_once(tmp_path: Path, capfd: Any) -> None:
    broken, fine = Recorded(fails=True), Recorded()
    train(tmp_path, broken, fine)
    said = capfd.readouterr().err
    assert said.count("fallline: logging to Recorded failed (ConnectionError: no network)") == 1
    assert "training continues" in said
    assert len(fine.rows) == 6


def test_a_logger_that_hangs_is_left_behind(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fallline.integrations import logger as room

    monkeypatch.setattr(room, "CLOSE_SECONDS", 0.2)
    release = threading.Event()

    class Stuck(Recorded):
        def numbers(self, step: int, numbers: dict[str, float]) -> None:
            release.wait(60)

    watching = train(tmp_path, Stuck())
    release.set()
    assert (watching.folder / "findings.json").exists()
    assert "does not answer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("log", "says"),
    [("tensorbord", "is not known"), (3, "numbers(step, numbers)"), ([object()], "not object")],
)
def test_a_wrong_logger_is_refused_at_once(tmp_path: Path, log: Any, says: str) -> None:
    import fallline

    with pytest.raises(UsageError) as caught:
        fallline.watch(out=tmp_path / "run", log=log)
    assert says in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from fallline.integrations.logger import loggers_of

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else real(name, *a)
    )
    with pytest.raises(UsageError, match="pip install wandb"):
        loggers_of("wandb")

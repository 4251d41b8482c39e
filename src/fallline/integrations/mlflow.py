"""MLflow: `log="mlflow"` joins the run that the script has open, else it starts one: at the tracking URI you have set, or
in the run folder (`mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`).
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from fallline.finding import Finding
from fallline.integrations.logger import Sink

__all__ = ["MLflow"]


class MLflow(Sink):
    """`run_id`: the run to log to; None: the open one, or a new one."""

    def __init__(self, run_id: str | None = None) -> None:
        self.run_id = run_id
        self._own = False
        self._client: Any = None
        self._findings = ""

    def attach(self) -> None:
        mlflow = sys.modules.get("mlflow")
        # the open run belongs to the thread that opened it
        if self.run_id is None and mlflow is not None and (run := mlflow.active_run()) is not None:
            self.run_id = run.info.run_id

    def open(self, folder: Path) -> None:
        mlflow: Any = import_module("mlflow")
        if self.run_id is not None or mlflow.is_tracking_uri_set():
            self._client = mlflow.MlflowClient()
        else:
            self._client = mlflow.MlflowClient(tracking_uri=_local(folder))
        if self.run_id is None:
            self._own = True
            experiment = self._client.get_experiment_by_name("fallline")
            where = experiment.experiment_id if experiment else None
            where = where or self._client.create_experiment(
                "fallline", artifact_location=(folder / "mlartifacts").as_uri()
            )
            self.run_id = self._client.create_run(where, run_name=folder.name).info.run_id

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # not every store takes NaN
        metrics = [Metric(_name(k), v, now, step) for k, v in numbers.items() if math.isfinite(v)]
        self._client.log_batch(self.run_id, metrics=metrics)

    def finding(self, finding: Finding) -> None:
        self._findings += f"{finding.code} {finding.name} ({finding.severity.value})\n  {finding.at}: {finding.message}\n\n"
        self._client.log_text(self.run_id, self._findings, "fallline/findings.txt")
        self._client.set_tag(self.run_id, f"fallline.{finding.code}", str(finding.at))

    def close(self) -> None:
        if self._own:
            self._client.set_terminated(self.run_id)


def _local(folder: Path) -> str:
    """A store in the run folder: SQLite as MLflow's own default is, or files where only mlflow-skinny is installed."""
    if all(map(importlib.util.find_spec, ("sqlalchemy", "alembic"))):
        return f"sqlite:///{folder / 'mlflow.db'}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (folder / "mlruns").as_uri()


def _name(text: str) -> str:
    """MLflow takes no '#' in names."""
    return text.replace("#", "-")

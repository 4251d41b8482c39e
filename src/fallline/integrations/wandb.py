"""Weights & Biases: `log="wandb"` joins the run that the script has open, else it starts one that stays on this machine.

In your own run the numbers ride along with your next `run.log(...)`: a row of ours would move the step that yours are counted by. A run of
our own is offline unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fallline.finding import Finding
from fallline.integrations.logger import Sink

__all__ = ["Wandb"]

_LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


class Wandb(Sink):
    """`run`: the run to log to; None: the open one, or a new one."""

    def __init__(self, run: Any = None) -> None:
        self.run = run
        self._own = False

    def attach(self) -> None:
        wandb = sys.modules.get("wandb")
        if self.run is None and wandb is not None:
            self.run = wandb.run

    def open(self, folder: Path) -> None:
        wandb: Any = import_module("wandb")
        if self.run is None:
            self._own = True
            self.run = wandb.init(
                project="fallline",
                name=folder.name,
                dir=str(folder),
                mode=os.environ.get("WANDB_MODE", "offline"),
                settings=wandb.Settings(silent=True),
            )
        self.run.define_metric("fallline/step")
        self.run.define_metric("fallline/*", step_metric="fallline/step")

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log({**numbers, "fallline/step": step}, commit=self._own)

    def finding(self, finding: Finding) -> None:
        wandb: Any = import_module("wandb")
        self.run.alert(
            title=f"{finding.code} {finding.name}",
            text=f"{finding.at}: {finding.message}",
            level=getattr(wandb.AlertLevel, _LEVELS[finding.severity.value]),
        )
        # alerts of an offline run are nowhere to be read before it is synchronised
        self.run.summary[f"fallline/{finding.code}"] = f"{finding.at}: {finding.message}"

    def close(self) -> None:
        if self._own:
            self.run.finish()

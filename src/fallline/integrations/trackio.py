"""trackio: `log="trackio"` joins the run that the script has open, else it starts one in the project "fallline" on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fallline.finding import Finding
from fallline.integrations.logger import Sink

__all__ = ["Trackio"]

_LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


class Trackio(Sink):
    """`run`: the run to log to, as `trackio.init` returns it; None: the open one, or a new one."""

    def __init__(self, run: Any = None) -> None:
        self.run = run
        self._own = False

    def attach(self) -> None:
        # the open run belongs to the thread that opened it
        if self.run is None and "trackio" in sys.modules:
            from trackio import context_vars

            self.run = context_vars.current_run.get()

    def open(self, folder: Path) -> None:
        if self.run is None:
            import trackio

            self._own = True
            self.run = trackio.init(
                "fallline", name=folder.name, embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        numbers = {**numbers, "fallline/step": step}
        if not self._own:
            step = max(
                self.run._next_step - 1, 0
            )  # the script's own steps are counted on as they were
        self.run.log(numbers, step=step)

    def finding(self, finding: Finding) -> None:
        import trackio

        self.run.alert(
            title=f"{finding.code} {finding.name}",
            text=f"{finding.at}: {finding.message}",
            level=getattr(trackio.AlertLevel, _LEVELS[finding.severity.value]),
        )

    def close(self) -> None:
        if self._own:
            self.run.finish()

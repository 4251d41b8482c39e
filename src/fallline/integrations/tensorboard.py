"""TensorBoard: `log="tensorboard"` writes to FOLDER/tensorboard; `log=TensorBoard(writer)` to a writer of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fallline.finding import Finding
from fallline.integrations.logger import Sink

__all__ = ["TensorBoard"]


class TensorBoard(Sink):
    """`writer`: a `torch.utils.tensorboard.SummaryWriter`, such as `trainer.logger.experiment` of Lightning."""

    def __init__(self, writer: Any = None) -> None:
        self.writer = writer
        self._own = writer is None
        self._step = 0

    def open(self, folder: Path) -> None:
        if self._own:
            from torch.utils.tensorboard import SummaryWriter

            make: Any = SummaryWriter
            self.writer = make(str(folder / "tensorboard"))

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        self._step = step
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def finding(self, finding: Finding) -> None:
        text = f"**{finding.code} {finding.name}** ({finding.severity.value}) at `{finding.at}`: {finding.message}"
        self.writer.add_text("fallline/findings", text, self._step)
        self.writer.flush()

    def close(self) -> None:
        if self._own:
            self.writer.close()
        else:
            self.writer.flush()

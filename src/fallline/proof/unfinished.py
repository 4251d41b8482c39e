"""What `prove --all` has measured so far, beside the record it is going to write: a run that is stopped, or killed, has not measured for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fallline.errors import UsageError
from fallline.files import write_atomically
from fallline.proof.record import Outcome, read, written

__all__ = ["Unfinished"]


class Unfinished:
    """The outcomes of a run that has not ended, in a file of the record's own form. It goes when the record is written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "evidence.unfinished.json"
        self._measured: list[Outcome] = []

    def of(self, names: Sequence[str]) -> list[Outcome]:
        """What a stopped run has measured of these; a run that goes on keeps it."""
        self._measured = [o for o in read(self.path) if o.of in names]
        return list(self._measured)

    def add(self, outcome: Outcome) -> None:
        """After each, not when it is stopped: a kill gives no time to write. What failed may do better next time."""
        if not outcome.measured:
            return
        measured = [*self._measured, outcome]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(str(self.path), written(measured).encode())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None
        self._measured = measured

    def __len__(self) -> int:
        return len(self._measured)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)

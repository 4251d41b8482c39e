"""FL705: the process dies while it overwrites its only checkpoint."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fallline.proof.experiment import Measured, experiment

SIZE = 1 << 18  # values: one MiB


@experiment(
    "FL705",
    claim="A process that dies in the middle of torch.save leaves neither the new checkpoint nor the old one; written to "
    "another name and moved into place, the old one survives.",
)
def save_not_atomic() -> Measured:
    wrong, right = _killed_while(_in_place), _killed_while(_moved_into_place)
    return Measured(
        sides={
            "wrong": {"update in the file": wrong.update, "bytes left of it": wrong.size},
            "right": {"update in the file": right.update, "bytes left of it": right.size},
        },
        conclusion=f"killed while writing in place, the process leaves {wrong.size / wrong.size_before:.0%} of a file, and {wrong.update}; moved into "
        f"place, the file still holds {right.update}",
        holds={
            "the writer was killed in both": wrong.killed and right.killed,
            "in place a truncated file is left": wrong.size < wrong.size_before,
            "which torch.load cannot read": wrong.update == "nothing that loads",
            "moved into place the old checkpoint survives": right.update == "update 1",
        },
    )


def _in_place(checkpoint: dict[str, object], file: Path) -> None:
    torch.save(checkpoint, file)


def _moved_into_place(checkpoint: dict[str, object], file: Path) -> None:
    torch.save(checkpoint, file.with_suffix(".tmp"))
    file.with_suffix(".tmp").replace(file)


class _killed_while:
    """Write update 1; a child process writes update 2 and is killed by the system halfway through."""

    def __init__(self, save: Callable[[dict[str, object], Path], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "checkpoint.pt")
            save({"update": 1, "weights": torch.ones(SIZE)}, file)
            self.size_before = file.stat().st_size
            child = os.fork()
            if not child:
                import resource  # unknown to Windows, as fork is

                # A file may grow to half of what is needed; the byte after that kills the writer.
                resource.setrlimit(resource.RLIMIT_FSIZE, (2 * SIZE, 2 * SIZE))
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                save({"update": 2, "weights": torch.ones(SIZE)}, file)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            self.killed = os.WIFSIGNALED(status)
            self.size = file.stat().st_size
            try:
                self.update = f"update {torch.load(file)['update']}"
            except RuntimeError:
                self.update = "nothing that loads"

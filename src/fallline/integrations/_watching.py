"""What the callbacks of all frameworks do: watch from the beginning of training to its end, as `fallline run` does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.integrations.run import active, default_folder
from fallline.integrations.watch import Watch, check_options, current, watch

if TYPE_CHECKING:
    from fallline.finding import Finding

__all__ = ["Watching", "missing"]


class Watching:
    """Options of the run, and the run that continues. The same defaults as `fallline run`.

    out      the run folder (default: fallline-runs/SCRIPT-TIME)
    budget   time for measuring, in percent of the step time
    guard    "skip" keeps a non-finite update out of the model, "exact" too and waits for the device, "stop" raises on it, "off" lets it
             through
    log      "tensorboard", "wandb", "mlflow", "trackio", "opentelemetry", an object of your own, or a list of these
    """

    _begun: Watch | None = None  # the last one, of any callback

    def __init__(
        self,
        *,
        out: str | os.PathLike[str] | None = None,
        budget: float = 1.0,
        guard: str = "skip",
        log: Any = None,
    ) -> None:
        check_options(budget, guard, log)
        # frameworks give callbacks attributes of their own: Lightning sets `log`
        self._options: dict[str, Any] = {"out": out, "budget": budget, "guard": guard, "log": log}
        self.findings: list[Finding] = []
        self._watch: Watch | None = None

    @property
    def folder(self) -> Path | None:
        """The run folder; None before the first update."""
        return self._watch.folder if self._watch is not None else None

    def begin(self, *things: Any) -> None:
        """Training begins with these models and optimizers. On every rank.

        Where the program watches itself already with `fallline.watch`, that continues, and this is silent. What a callback
        has begun and a program that raised has left open is replaced.
        """
        begun = Watching._begun
        if active() is None and (going := current()) is not None:
            if begun is None or going is not begun._session:
                return
        options = dict(self._options)
        if options["out"] is None:
            options["out"] = _agreed_folder()
        self._watch = Watching._begun = watch(*things, **options)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, or has raised. Says what was found, once."""
        current = self._watch
        if current is None or current.stopped or not current.own:
            return
        self.findings = current.stop() if error is None else current.fail(error)
        text = current.summary(sys.stderr)
        if text:
            print(f"\n{text}\n  fallline report {current.folder}", file=sys.stderr)


def _agreed_folder() -> str:
    """The default folder, the same on all ranks: they may have been started in different seconds."""
    folder = default_folder(sys.argv[0] or "train")
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        said = [folder]
        dist.broadcast_object_list(said, src=0)
        return said[0]
    return folder


def missing(package: str, error: ImportError) -> UsageError:
    """What to say when the framework itself is not there."""
    return UsageError(f"this needs {package}: pip install {package} ({error})")

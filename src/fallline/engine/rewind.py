"""Going back: after a loss spike or a gradient that is not finite, to the last good snapshot, without the samples that did it."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fallline.engine import rng
from fallline.engine.snapshots import Snapshot, Snapshots, copied
from fallline.errors import EngineError

__all__ = ["Rewind", "WentBack"]


@dataclass(frozen=True)
class WentBack:
    """One time that a run went back."""

    update: int  # the one that was not applied
    to: int  # the update it went back to
    loss: float
    usual: float
    epoch: int
    places: tuple[int, int]  # in the epoch's global order: what is left out from now on


class Rewind:
    """`Stepper(..., on_spike=fallline.Rewind(keep=3, every=200))`: decided by all ranks together, before the update is applied.

    A window is a spike when its gradient is not finite, or its loss is `threshold` robust standard deviations above the median of the last
    `window` updates. The run then goes back to the newest of `keep` snapshots, which are taken every `every` updates, and leaves out
    the samples of that window for good. A spike that comes back goes to an older snapshot. After `most` times it is an error: something else is wrong.

    Snapshots are in host memory, or with `folder` on disk, each rank's own part; they last as long as the process.
    It reads the loss of every update, which waits for the device. `history` says what happened.
    """

    def __init__(
        self,
        keep: int = 3,
        every: int = 200,
        *,
        folder: str | os.PathLike[str] | None = None,
        threshold: float = 8.0,
        window: int = 100,
        most: int = 10,
    ) -> None:
        if keep < 1 or every < 1 or window < 10 or most < 1 or not threshold > 0:
            raise EngineError(
                "Rewind needs keep, every and most of 1 or more, a window of 10 or more, and a threshold above 0"
            )
        self.every, self.threshold, self.most = every, threshold, most
        self.history: list[WentBack] = []
        self._losses: deque[float] = deque(maxlen=window)
        self._snapshots = Snapshots(keep, None if folder is None else Path(folder))
        self._sum = self._weight = 0.0

    # -- the loss of a window ---------------------------------------------------------------------------------------

    def see(self, loss: Tensor, weight: float | Tensor, weighted: bool) -> None:
        """One micro-batch: its mean loss, or its sum over `weight` things. Waits for the device."""
        self._sum += float(loss.detach()) if weighted or weight else 0.0
        self._weight += float(weight)

    def take_sums(self) -> list[float]:
        sums, self._sum, self._weight = [self._sum, self._weight], 0.0, 0.0
        return sums

    def is_spike(self, loss: float, found_inf: bool) -> bool:
        """Against the recent past of this run."""
        if found_inf or not math.isfinite(loss):
            return True
        return len(self._losses) >= 10 and loss > self._limit()

    def passed(self, loss: float) -> None:
        """A loss that is not a spike becomes part of that past."""
        self._losses.append(loss)

    def _limit(self) -> float:
        usual = statistics.median(self._losses)
        spread = 1.4826 * statistics.median(abs(x - usual) for x in self._losses)
        return usual + self.threshold * max(spread, 0.01 * abs(usual), 1e-12)

    # -- snapshots --------------------------------------------------------------------------------------------------

    @property
    def has_snapshot(self) -> bool:
        return bool(self._snapshots)

    def is_due(self, update: int) -> bool:
        return not self._snapshots or update - self._snapshots.newest >= self.every

    def keep(self, update: int, parts: Sequence[Any], stepper: dict[str, Any]) -> None:
        states = [copied(part.state_dict()) for part in parts]
        self._snapshots.add(Snapshot(update, states, copied(stepper), rng.capture()))

    def back(
        self,
        update: int,
        loss: float,
        epoch: int,
        places: tuple[int, int],
        anywhere: Callable[[bool], bool],
    ) -> Snapshot:
        """The snapshot to go back to, after a spike: the same one on all ranks. Says so. `anywhere`: whether it is so on any rank."""
        if len(self.history) >= self.most:
            raise EngineError(
                f"update {update} spikes again after going back {self.most} times, so the data is not the reason. "
                "Lower the learning rate, or find the operation with `fallline run`"
            )
        again = bool(self.history) and update <= self.history[-1].update
        if again and len(self._snapshots) > 1:
            self._snapshots.drop()  # that one was already bad
        found = self._read(anywhere)
        usual = statistics.median(self._losses) if self._losses else math.nan
        self.history.append(WentBack(update, found.update, loss, usual, epoch, places))
        warnings.warn(
            f"update {update} is a spike (loss {loss:.4g}, usually {usual:.4g}): back to update {found.update}, without samples {places[0]} to "
            f"{places[1] - 1} of epoch {epoch}",
            stacklevel=2,
        )
        return found

    def _read(self, anywhere: Callable[[bool], bool]) -> Snapshot:
        """The newest snapshot that every rank can read."""
        reason: Exception | None = None
        while self._snapshots:
            found = None
            try:
                found = self._snapshots.read()
            except (
                Exception
            ) as error:  # whatever a disk can do: the other ranks wait for the answer
                reason = error
            if not anywhere(found is None):
                assert found is not None
                return found
            self._snapshots.drop()
        raise EngineError(
            f"no snapshot can be read on every rank ({reason or 'on this one they could'}), so the run cannot go back: load a checkpoint"
        ) from reason

    # -- with the Stepper's state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it judges by. Snapshots are not part of it."""
        return {
            "losses": list(self._losses),
            "history": [dataclasses.asdict(back) for back in self.history],
        }

    def restore_losses(self, state: dict[str, Any]) -> None:
        self._losses.clear()
        self._losses.extend(state["losses"])
        self._sum = self._weight = 0.0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a checkpoint: snapshots of before are of a different run."""
        self.restore_losses(state)
        self.history = [
            WentBack(**{**back, "places": tuple(back["places"])}) for back in state["history"]
        ]
        self._snapshots.clear()


def restore(snapshot: Snapshot, parts: Sequence[Any]) -> None:
    for part, state in zip(parts, snapshot.parts, strict=True):
        part.load_state_dict(copied(state))
    rng.restore(snapshot.rng)

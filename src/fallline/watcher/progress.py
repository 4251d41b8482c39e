"""How far a run is, and what is known about the update in progress."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from torch import Tensor

from fallline.location import Location
from fallline.watcher.clock import DeviceClock

__all__ = ["NO_CLIP", "Draft", "Given", "Progress"]

NO_CLIP = (None, None)  # the norm that was measured, and the threshold
SPANS = (
    "data",
    "forward",
    "backward",
    "step",
)  # where the time of an update goes; the rest is "other"
MOST_BATCHES = 64  # whose samples are known


class Progress:
    """Of one run."""

    def __init__(self) -> None:
        self.steps = 0  # of all optimizers
        self.counts: dict[str, int] = {}  # updates by optimizer; the one stepped last comes last
        # steps by id of the optimizer, since watching rests: they are in none of the others yet
        self.at_rest: dict[int, int] = {}
        self.by_hand = 0  # updates without an optimizer
        self.by_hand_at: Location | None = None  # the last of them
        self.micro_batches = 0  # of the last update
        self.checkpoints = 0  # calls of torch.utils.checkpoint

    @property
    def updates(self) -> int:
        """The most updates that one optimizer has made; those made by hand where none steps."""
        made = max(self.at_rest.values(), default=0)
        return max(self.counts.values(), default=self.by_hand) + made

    def steps_until(self, optimizer: str, updates: int) -> int:
        """In how many steps of all optimizers this one makes its update after so many, as they have taken turns until now."""
        made = self.counts.get(optimizer, 0)
        return updates * self.steps // made if made else updates


class Given(NamedTuple):
    """A loss as the user gave it to a framework, which divides and scales it."""

    loss: Tensor
    window: int  # micro-batches by which the framework divides


class Draft:
    """The update in progress, before its step."""

    def __init__(self) -> None:
        self.in_closure: bool | None = False  # None: between two runs of one step's closure
        self.loss_at: Location | None = None  # of the last backward
        self.clip_at: Location | None = None
        self.batch_at: Location | None = None  # of the last batch
        self.clock: DeviceClock | None = None  # while the parts of an update are timed on a device
        self._ended = 0.0  # when the update before this one did
        self.clear()

    def parts(self, moment: float) -> dict[str, float]:
        """Seconds since the update before, which ends at `moment`, by part."""
        seconds, before = self.seconds, self._ended
        self._ended = moment
        if before:
            seconds["other"] = max(0.0, moment - before - sum(seconds.values()))
        return seconds

    def resume(self, moment: float) -> None:
        """Updates have passed that nobody watched; the next one begins."""
        self.clear()
        self._ended, self.clock = moment, None

    def clear(self) -> None:
        """The next update begins."""
        self.losses: list[Any] = []
        self.given: Given | None = None  # whose backward comes next
        self.clip: tuple[Any, float | None] = NO_CLIP
        self.scale: Any = (
            None  # the loss scale of its backward passes; None where they are not scaled
        )
        self.rate: float | None = (
            None  # its learning rate, where the optimizer's may be the next one's
        )
        self.all_reduces = 0
        # of the samples in its batches, where a sampler drew them
        self.indices: deque[list[Any]] = deque(maxlen=MOST_BATCHES)
        self.seconds = dict.fromkeys(SPANS, 0.0)

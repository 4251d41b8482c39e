"""When a loss jumps far out of its recent range: which samples were in the batch, and which of them made it jump.

The finding comes later, when it is known whether the loss returns; by then the batch is gone. So at the first sign of a spike, before
its backward, the micro-batch is run once more and the loss is taken apart by sample. On an accelerator nobody waits for the loss: there
the thread that writes the run sees the spike, and the samples are those that the sampler drew.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import deque
from typing import Any

from torch import Tensor

from fallline.replay.again import as_it_was, prepare
from fallline.replay.capture import Capture, Gone, take
from fallline.replay.once import Once
from fallline.replay.tensors import tensors_in
from fallline.runs.update import UpdateRow
from fallline.taps.tap import Reached
from fallline.watcher.objects import Objects
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.recording import Recording
from fallline.watcher.sample_losses import SampleLosses, unusual

__all__ = ["Spikes"]

WINDOW = 100  # losses that make the recent past
LEAST = 30  # of them, before any can be far out
EVERY = 8  # losses between two reckonings of the limit
MOST = 4  # spikes that are looked into
MOST_LAYERS = 200
SHOWN = 64  # indices of samples
KEPT = 512  # updates whose samples are known, on an accelerator


class Level:
    """Above which limit a loss would be a spike; the same measure as FL624's, without what only the whole run shows."""

    def __init__(self) -> None:
        self.past: deque[float] = deque(maxlen=WINDOW)
        self.limit = float("inf")
        self.left = LEAST  # losses until the limit is reckoned again

    def reckon(self) -> None:
        self.left = EVERY
        ordered = sorted(self.past)
        middle = ordered[len(ordered) // 2]
        apart = sorted(abs(v - middle) for v in ordered)
        spread = 1.4826 * apart[len(apart) // 2]
        jump = max(10 * spread, 3 * (ordered[-1] - middle), 3 * abs(middle))
        self.limit = middle + jump if jump else float("inf")

    def add(self, loss: float) -> bool:
        """Whether this loss is a spike; where it is not, it belongs to the past of the next one."""
        if loss > self.limit:
            return True
        self.past.append(loss)
        self.left -= 1
        if self.left <= 0:
            self.reckon()
        return False


class Spikes:
    """Of one process."""

    def __init__(
        self,
        objects: Objects,
        origin: Origin,
        progress: Progress,
        draft: Draft,
        recording: Recording,
    ) -> None:
        self._objects = objects
        self._origin = origin
        self._progress = progress
        self._draft = draft
        self._recording = recording
        self.level = Level()
        self._late: dict[str, Level] = {}  # by optimizer, as the thread that writes the run sees it
        # updates on an accelerator, and the indices of their samples
        self._drawn: deque[tuple[str, int, deque[list[Any]]]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._found: list[dict[str, Any]] = []

    # -- on a CPU, before the backward -------------------------------------------------------------------------

    def look(self, loss: float) -> None:
        """This loss is about to be followed back; its batch is still there."""
        if not self.level.add(loss) or len(self._found) >= MOST:
            return
        facts: dict[str, Any] = {"loss": loss, "updates": dict(self._progress.counts)}
        indices = self._draft.indices[-1] if self._draft.indices else None
        capture = self._origin.capture
        if capture is not None:
            with contextlib.suppress(Exception):  # what the batch looked like is not worth the rest
                facts |= _batch(capture, indices)
        if indices is not None:
            facts["indices"] = indices[:SHOWN]
        moments = self._moments()
        if moments:
            facts["moments"] = moments
        self._add(facts)

    def _moments(self) -> dict[str, float]:
        """By parameter: the size of gradient that Adam's second moments expect."""
        found: dict[str, float] = {}
        for _, optimizer in self._objects.optimizers():
            for parameter in (p for g in optimizer.param_groups for p in g["params"]):
                second = optimizer.state.get(parameter, {}).get("exp_avg_sq")
                if isinstance(second, Tensor) and second.is_cpu and len(found) < MOST_LAYERS:
                    name = self._objects.parameter_names([self._objects.serial(parameter)])[0]
                    found[name] = float(second.mean()) ** 0.5
        return found

    # -- on an accelerator, later ------------------------------------------------------------------------------

    def drawn(self, optimizer: str, index: int) -> None:
        """An update has ended whose loss nobody has read yet."""
        if self._draft.indices:
            self._drawn.append((optimizer, index, self._draft.indices))

    def row(self, row: UpdateRow) -> None:
        """In the thread that writes the run: the numbers of an update are known."""
        if not self._drawn or row.loss is None or row.loss != row.loss:
            return
        level = self._late.setdefault(row.optimizer, Level())
        if level.add(row.loss) and len(self._found) < MOST:
            for optimizer, index, drawn in list(self._drawn):
                if (optimizer, index) == (row.optimizer, row.index):
                    indices = [i for one in drawn for i in one]
                    facts = {"loss": row.loss, "updates": {optimizer: index}}
                    self._add(facts | {"indices": indices[:SHOWN], "size": len(indices)})

    def _add(self, facts: dict[str, Any]) -> None:
        with self._lock:
            self._found.append(facts)
            self._recording.open().describe("spikes", self._found)


def _batch(capture: Capture, indices: list[Any] | None) -> dict[str, Any]:
    """What the batch looks like, and what each of its samples adds to the loss."""
    try:
        given = [
            t for call in capture.calls for t in tensors_in((take(call.args), take(call.kwargs)))
        ]
    except Gone:
        given = []
    facts: dict[str, Any] = {}
    size = len(indices) if indices else given[0].shape[0] if given and given[0].dim() else 0
    if indices is None and given:
        facts["fingerprint"] = _fingerprint(given)
    losses = _by_sample(capture, size) if size > 1 else None
    if losses is not None:
        facts |= {"samples": losses.worst(given, indices), "median": losses.median, "size": size}
    elif size > 1:
        facts |= {"samples": unusual(given, size, indices), "size": size}
    return facts


def _by_sample(capture: Capture, size: int) -> SampleLosses | None:
    """The loss of each sample, from running the micro-batch again."""
    replay = prepare(capture)
    # a run that may be healthy: only statements of which each is known to leave nothing behind
    if replay.run is None or replay.way != "statements":
        return None
    losses = SampleLosses(size)
    try:
        with as_it_was(capture), losses:
            replay.run()
    except (Exception, Once, Reached):
        return None
    return losses if losses.values is not None else None


def _fingerprint(given: list[Tensor]) -> str:
    """What the model was called with, short enough for a log: the same batch has the same one."""
    first = given[0].detach()
    shape = "x".join(map(str, first.shape))
    kind = str(first.dtype).removeprefix("torch.")
    if not first.is_cpu or first.numel() > 1 << 22:
        return f"{shape} {kind}"
    return f"{shape} {kind} {zlib.crc32(bytes(first.contiguous().untyped_storage())):08x}"

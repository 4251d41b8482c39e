"""A micro-batch is run again under a trace, to see which operation made a number that is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fallline.replay.again import Replay, arguments, as_it_was, prepare
from fallline.replay.capture import Capture, Gone
from fallline.replay.modules import Modules, unwrap
from fallline.replay.once import Once
from fallline.replay.tensors import tensors_in
from fallline.taps.frames import user_frames
from fallline.taps.tap import Reached
from fallline.watcher.objects import Objects
from fallline.watcher.origin_hooks import Hooks
from fallline.watcher.origin_trace import BackwardTrace, ForwardTrace, Story
from fallline.watcher.progress import Progress

__all__ = ["Replays"]

MOST = 3  # a run that has gone bad goes bad at every update: these many are looked into
Told = tuple[
    Story | None, str, str
]  # what was seen, in which way it was run again, what is missing


class Replays:
    """Of one process."""

    def __init__(self, objects: Objects, progress: Progress) -> None:
        self._objects = objects
        self._progress = progress
        self._made = 0

    @property
    def enough(self) -> bool:
        return self._made >= MOST

    def forward(self, capture: Capture | None) -> Told:
        """From the model call to the loss."""
        return self.story(capture, self._prepared(capture))

    def story(self, capture: Capture | None, replay: Replay) -> Told:
        """What a forward pass that is ready to be run again shows."""
        if replay.run is None or capture is None:
            return None, "", replay.missing
        trace = ForwardTrace(replay.names | arguments(capture))
        try:
            with as_it_was(capture, trace.same):
                trace.modules = self.modules(capture)  # with the buffers of the replay
                with trace.modules.followed(), trace:
                    loss = replay.run()
        except Gone:
            return None, replay.way, "an input of the model is no longer there"
        except (Exception, Once, Reached) as error:
            return None, replay.way, f"the replay failed: {type(error).__name__}: {error}"
        return _worst(trace, loss), replay.way, replay.missing

    def backward(self, capture: Capture | None) -> Told:
        """The forward pass and its backward."""
        replay = self._prepared(capture)
        if replay.run is None or capture is None or replay.way == "modules":
            return None, "", replay.missing
        modules = self.modules(capture)
        hooks = Hooks(modules)
        try:
            with as_it_was(capture), hooks.followed(capture.models):
                with modules.followed(), torch.autograd.set_detect_anomaly(True, check_nan=False):
                    loss = replay.run()
                if not isinstance(loss, Tensor) or loss.grad_fn is None:
                    return None, replay.way, "the replay gave no loss"
                saved, ended = not self._progress.checkpoints, lambda: hooks.found is not None
                story = BackwardTrace(modules, saved=saved, ended=ended).run(loss)
                return story or hooks.found, replay.way, ""
        except Gone:
            return None, replay.way, "an input of the model is no longer there"
        except (Exception, Once, Reached) as error:
            return None, replay.way, f"the replay failed: {type(error).__name__}: {error}"

    def _prepared(self, capture: Capture | None) -> Replay:
        self._made += 1
        if capture is None:
            return Replay(None, missing="no model was called: there is nothing to run again")
        return prepare(capture)

    def modules(self, capture: Capture) -> Modules:
        """Those that were called, with the names they have in the user's variables."""
        known = [m for _, m in self._objects.models()]
        named = [v for f in user_frames() for v in f.f_locals.values() if isinstance(v, nn.Module)]
        called = list(map(unwrap, capture.models))
        return Modules.around(called, known + capture.holders, list(map(unwrap, named)))


def _worst(trace: ForwardTrace, loss: Any) -> Story | None:
    """The story of the loss; of the first output that is not finite, where only the models were run."""
    for tensor in tensors_in(loss):
        story = trace.story(tensor)
        if story is not None and not bool(torch.isfinite(tensor).all()):
            return story
    return None

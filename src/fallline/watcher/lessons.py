"""What the first batches of a watched run teach: the checks of `measure data`, beside the training thread.

The training thread only copies whole numbers, and does not wait for its device. A thread of ours judges them once a few batches have
been learned from; what needs the model or the tokenizer is asked when the script is over.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fallline.lessons.judge import (
    config_holder,
    learning_observations,
    lesson_observations,
    probing_observations,
)
from fallline.lessons.lesson import Lesson, Observation
from fallline.lessons.listen import Listener
from fallline.lessons.on_stack import tokenizer_on_stack
from fallline.lessons.words import Words, words_of
from fallline.location import Location
from fallline.replay.modules import wrapper_of
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.data import BATCH, BatchCall
from fallline.taps.losses import LOSS, LossCall
from fallline.taps.modules import FORWARD, ForwardCall
from fallline.taps.optimizers import OPTIMIZER_MADE, STEP, OptimizerMade, StepCall
from fallline.taps.tap import Call, Subscription, silence
from fallline.taps.vocabulary import RESIZED, Resized
from fallline.watcher.observed import Observed
from fallline.watcher.recording import Recording

__all__ = ["Lessons"]

_BATCHES = 4
_CALLS = 20_000  # of models, before we give up on a run that does not learn
_WAIT = 5.0  # seconds for our own thread, when the script is over
# what other parts of the watcher report better, or what a run that is going on cannot know
_CODES = frozenset(f"FL0{n}" for n in range(10, 25))

C = TypeVar("C", bound=Call)


class Lessons:
    """Follows the first batches of one run."""

    def __init__(self, observed: Observed, recording: Recording) -> None:
        self._observed = observed
        self._recording = recording
        self._listener: Listener | None = Listener(_BATCHES, watched=True)
        self._steps = 0
        self._taps = Subscription()
        self._thread: threading.Thread | None = None
        # what is asked when the script is over
        self._lessons: list[Lesson] = []
        self._tokenizer: Any = None
        self._looked = False  # for the tokenizer
        self._model: weakref.ref[nn.Module] | None = None
        self._seen: set[tuple[str, str, int]] = set()

    def start(self, *, rebind: bool = False) -> None:
        taps = self._taps = Subscription(rebind=rebind)
        taps.after(BATCH, self._safely(self._batch))
        taps.before(FORWARD, self._safely(self._forward_begins))
        taps.after(FORWARD, self._safely(self._forward_ends))
        taps.before(LOSS, self._safely(self._loss))
        taps.before(BACKWARD, self._safely(self._backward_begins))
        taps.after(BACKWARD, self._safely(self._backward_ends))
        taps.after(OPTIMIZER_MADE, self._safely(self._optimizer_made))
        taps.after(STEP, self._safely(self._step))
        taps.after(RESIZED, self._safely(self._resized))
        taps.start()

    def stop(self) -> None:
        self._taps.stop()

    def _safely(self, handler: Callable[[C, Listener], None]) -> Callable[[C], None]:
        """A failure of ours ends this part, and nothing else."""

        def safely(call: C) -> None:
            listener = self._listener
            if listener is None or _capturing():
                return
            try:
                with silence():
                    handler(call, listener)
            except Exception as error:
                self._failed(error)

        return functools.wraps(handler)(safely)

    def _leave(self) -> None:
        """In the training thread: later updates make no calls of ours."""
        if self._listener is None:
            return
        self._listener = None
        self._taps.stop()

    def _failed(self, error: Exception) -> None:
        self._leave()
        print(f"fallline: the first batches could not be looked at ({error!r})", file=sys.stderr)
        if os.environ.get("FALLLINE_DEBUG"):
            traceback.print_exception(error)

    # -- in the training thread --------------------------------------------------------------------------------

    def _batch(self, call: BatchCall, listener: Listener) -> None:
        listener.batch_ends(call.iterator, None)

    def _forward_begins(self, call: ForwardCall, listener: Listener) -> None:
        listener.forward_begins(call.module, call.args, call.kwargs, _at(call))
        if not self._looked and listener.pending and _is_text(listener.pending[-1]):
            self._looked = True
            self._tokenizer = tokenizer_on_stack(call.frame, listener.loader)
        if listener.calls > _CALLS:
            self._leave()

    def _forward_ends(self, call: ForwardCall, listener: Listener) -> None:
        listener.forward_ends(call.module, call.output)

    def _loss(self, call: LossCall, listener: Listener) -> None:
        listener.loss_begins(call, _at(call))

    def _backward_begins(self, call: BackwardCall, listener: Listener) -> None:
        listener.backward_begins(call.loss, _at(call))

    def _backward_ends(self, call: BackwardCall, listener: Listener) -> None:
        listener.backward_ends()

    def _optimizer_made(self, call: OptimizerMade, listener: Listener) -> None:
        listener.optimizer_made(call.optimizer, _at(call))

    def _step(self, call: StepCall, listener: Listener) -> None:
        self._steps += 1
        listener.learner.step_ends(call.optimizer)
        listener.update_ends(self._steps)
        if listener.full:
            self._judge_beside(listener)

    def _resized(self, call: Resized, listener: Listener) -> None:
        listener.learner.resized(call.model, call.before, call.after, _at(call))

    # -- beside it ---------------------------------------------------------------------------------------------

    def _judge_beside(self, listener: Listener) -> None:
        """The first batches are here: look at them while training continues."""
        self._leave()
        self._thread = threading.Thread(
            target=self._judge, args=(listener, False), name="fallline-lessons", daemon=True
        )
        self._thread.start()

    def _judge(self, listener: Listener, over: bool) -> None:
        """`over`: the script has ended, and its tokenizer may be used."""
        try:
            listener.arrive()
            model = listener.learner.models[0][0] if listener.learner.models else None
            self._model = None if model is None else weakref.ref(model)
            self._lessons = [x for x in listener.lessons if _is_text(x)]
            words = words_of(self._tokenizer, config_holder(model), decode=over)
            found = [*listener.observed, *lesson_observations(self._lessons, words, model)]
            self._report(found + learning_observations(listener, words))
            self._describe(listener)
        except Exception as error:
            self._failed(error)

    def _report(self, found: list[Observation]) -> None:
        for entry in found:
            key = (entry["code"], entry["path"], entry["line"])
            if entry["code"] not in _CODES or key in self._seen or entry["path"] == "<batches>":
                continue
            self._seen.add(key)
            facts = dict(entry)
            code = facts.pop("code")
            place = (facts.pop(k) for k in ("path", "line", "column", "function"))
            self._observed.add(code, Location(*place), facts)

    def _describe(self, listener: Listener) -> None:
        """Numbers of a policy: how far sampler, trainer and reference agree."""
        policies = listener.policies
        if policies.samples and policies.numbers.pairs:
            self._recording.open().describe("policy", policies.numbers.to_json())

    # -- when the script is over -------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        if self._listener is not None:
            self._listener.failed(error)

    def finish(self) -> None:
        """What is left, in the training thread: nothing can disturb the script any more."""
        self.stop()
        listener, self._listener = self._listener, None
        if listener is not None and _anything(listener):
            listener.close()
            self._judge(listener, True)
        elif self._thread is not None:
            self._thread.join(_WAIT)
        if self._lessons and (self._thread is None or not self._thread.is_alive()):
            self._ask()

    def _ask(self) -> None:
        """What the tokenizer decodes, and whether packed samples see each other."""
        model = self._model() if self._model is not None else None
        words: Words = words_of(self._tokenizer, config_holder(model), decode=True)
        alone = self._recording.world == 1 and model is not None and wrapper_of(model) is None
        with silence():
            if alone:
                self._report(probing_observations(self._lessons, words, model))
            else:
                self._report(lesson_observations(self._lessons, words, model))


def _at(call: Call) -> Location | None:
    place = call.place
    return place.at if place is not None else None


def _is_text(lesson: Lesson) -> bool:
    return any(isinstance(v, Tensor) and v.dim() in (1, 2) for v in lesson.inputs.values())


def _anything(listener: Listener) -> bool:
    """It learned something, or failed while it tried."""
    learned = listener.lessons or listener.pending or listener.policies.names
    return bool(learned or listener.observed)


def _capturing() -> bool:
    """While a CUDA graph is captured, nothing may be added to it."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]

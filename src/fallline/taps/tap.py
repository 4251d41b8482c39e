"""The means of every tap: topics that calls are published on, subscriptions to them, and the switch that silences all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from fallline.taps.frames import Place, caller, place
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.thread import TrainingThread
from fallline.taps.tracing import traced

__all__ = [
    "Call",
    "Hook",
    "Pulse",
    "Reached",
    "Rests",
    "Subscription",
    "Switch",
    "Tap",
    "Topic",
    "announced",
    "compiled",
    "new",
    "published",
    "published_at_rest",
    "replaying",
    "silence",
    "switch",
    "thread",
]


@dataclass(slots=True)
class Call:
    """A call of torch's that a training loop has made. Not to be kept: `frame` holds all of the caller's variables."""

    frame: FrameType  # that made the call: the user's, or a framework's

    @property
    def place(self) -> Place | None:
        """The user's line behind it."""
        return place(self.frame)


C = TypeVar("C", bound=Call)
Handler = Callable[[C], Any]
Hook = Callable[[Any, Any, Any], None]  # of torch, in front of a step
# A call without the way through its constructor: the taps that every update passes set its attributes themselves, look
# for its frame and ask whether it is published where they stand. A function of ours costs more than what it does there.
new: Callable[[type[C]], C] = object.__new__


class Pulse(Protocol):
    """What counts steps while nothing else of an update is published."""

    # in front of each step: all that is left in the way of an update, so it has to be short
    before: Hook

    def after(self, optimizer: Any) -> None:
        """Behind a step whose end `before` has asked for (`optimizers.hear_end`)."""


class Rests(Protocol):
    """What goes out of the way while the switch rests."""

    def rest(self, pulse: Pulse | None) -> None: ...


class Switch:
    """Which calls are published now. Read for every call of every module, so it is kept to plain attributes."""

    def __init__(self) -> None:
        self.quiet = False  # silent, or at rest
        self._silent = False
        self.pulse: Pulse | None = None
        self.replaying = (
            False  # backward ends the replay; steps, clearing and schedules are held back
        )
        self.inside = False  # in the forward pass of a model
        self.in_backward = False
        self.hot: list[Rests] = []  # go out of the way while it rests
        self.lasting: list[Tap] = []  # stay until nobody listens to anything

    @property
    def silent(self) -> bool:
        """Our own computations, a replay: nothing at all is published."""
        return self._silent

    @silent.setter
    def silent(self, silent: bool) -> None:
        self._silent = silent
        self.quiet = silent or self.pulse is not None

    def rest(self, pulse: Pulse | None) -> None:
        """Publish no more of updates than their steps, to this one; None: everything again. New objects and epochs always count."""
        self.pulse = pulse
        self.quiet = self._silent or pulse is not None
        for tap in self.hot:
            tap.rest(pulse)


class Reached(BaseException):
    """The replay has come to the backward; carries the loss. Not an Exception: user code must not catch it."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss


switch = Switch()
thread = TrainingThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=thread.forget)


def published() -> bool:
    """Whether a call that is made now, by this thread, is published."""
    if traced() or switch.quiet:
        return False
    return thread.ident == get_ident() or not thread.keeps_out()


def published_at_rest() -> bool:
    """The same of what counts also while updates are not followed: objects that are made, epochs."""
    if traced() or switch.silent:
        return False
    return thread.ident == get_ident() or not thread.keeps_out()


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is published meanwhile: what runs now is not the user's training."""
    before, switch.silent = switch.silent, True
    try:
        yield
    finally:
        switch.silent = before


@contextmanager
def replaying() -> Iterator[None]:
    """A part of the user's code is run again: silently, without any step, and up to its backward, which raises `Reached`."""
    before, switch.replaying = switch.replaying, True
    try:
        with silence():
            yield
    finally:
        switch.replaying = before


_followers = 0  # subscriptions that are going on


class Tap:
    """Patches that belong together, in place while anyone listens to one of their topics.

    With `variants`, `install` asks which topics are heard, and is called again when that changes. `hot`: what it patches is called
    so often that the patches go away while the switch rests. `lasting`: it patches functions that programs keep and compare
    (`loss_fn is F.mse_loss`), so once in place it stays until nobody listens to anything.
    """

    def __init__(
        self,
        install: Callable[[Patches], None],
        *,
        variants: bool = False,
        hot: bool = False,
        lasting: bool = False,
    ) -> None:
        if hot:
            switch.hot.append(self)
        if lasting:
            switch.lasting.append(self)
        self._install = install
        self._variants = variants
        self._patches: Patches | None = None
        self._topics: list[Topic[Any]] = []
        self._heard: list[bool] = []

    def add(self, topic: Topic[Any]) -> None:
        self._topics.append(topic)

    def rest(self, pulse: Pulse | None) -> None:
        """Nothing is published meanwhile."""
        if self._patches is not None:
            if pulse is None:
                self._patches.lay()
            elif not compiled():
                self._patches.lift()

    def refresh(self, rebind: bool) -> None:
        """Someone has come or gone."""
        heard = [topic.heard for topic in self._topics]
        if not any(heard) and _followers and self in switch.lasting:
            return
        changed = heard != self._heard if self._variants else any(heard) != any(self._heard)
        self._heard = heard
        if not changed:
            return
        if self._patches is not None:
            self._patches.remove()
            self._patches = None
        if any(heard):
            self._patches = Patches(rebind=rebind)
            self._install(self._patches)
            self._patches.reach_names()


def compiled() -> bool:
    """torch has compiled code, which may have to be compiled again where a method of a module changes."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(frames, "FRAME_COUNTER", 0))


class Topic(Generic[C]):
    """Calls of one kind. `before` handlers run before the call, `after` handlers once it has returned."""

    def __init__(self, kind: type[C], tap: Tap) -> None:
        self.kind = kind
        self.tap = tap
        self.before: tuple[Handler[C], ...] = ()
        self.after: tuple[Handler[C], ...] = ()
        tap.add(self)

    @property
    def heard(self) -> bool:
        return bool(self.before or self.after)

    def around(self, call: C, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Publish the call and make it; its result."""
        for handler in self.before:
            handler(call)
        result = run(*args, **kwargs)
        for handler in self.after:
            handler(call)
        return result


def announced(topic: Topic[Any]) -> Callable[[Wrapped], Wrapped]:
    """A patch of `__init__`: the object is published on this topic when it has been made."""

    def make(original: Wrapped) -> Wrapped:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if published_at_rest():
                call = topic.kind(caller(), self)
                for handler in topic.after:
                    handler(call)

        return __init__

    return make


class Subscription:
    """What one subscriber listens to.

    taps = Subscription()
    taps.before(BACKWARD, self._backward_begins)
    taps.after(BACKWARD, self._backward_ends)
    taps.start()
    ...
    taps.leave(GRADIENT_READ)  # not interested any more
    taps.stop()
    """

    def __init__(self, *, rebind: bool = False) -> None:
        """`rebind`: also patch functions that a module has already imported by name."""
        self.rebind = rebind
        self._before: list[tuple[Topic[Any], Handler[Any]]] = []
        self._after: list[tuple[Topic[Any], Handler[Any]]] = []
        self._started = False

    def before(self, topic: Topic[C], handler: Handler[C]) -> None:
        """Call `handler` before each such call. What it raises goes to the caller, and the call is not made."""
        self._before.append((topic, handler))

    def after(self, topic: Topic[C], handler: Handler[C]) -> None:
        """Call `handler` after each such call that has returned."""
        self._after.append((topic, handler))

    def start(self) -> None:
        """Calls are published to us from here on."""
        global _followers
        if self._started:
            return
        if not _followers:
            thread.forget()
        self._started = True
        _followers += 1
        for topic, handler in self._before:
            topic.before = (*topic.before, handler)
        for topic, handler in self._after:
            topic.after = (*topic.after, handler)
        self._refresh()

    def leave(self, *topics: Topic[Any]) -> None:
        """These are no longer of interest."""
        for topic in topics:
            self._drop(topic)
        self._refresh()
        self._before = [(t, h) for t, h in self._before if t not in topics]
        self._after = [(t, h) for t, h in self._after if t not in topics]

    def drop(self, *handlers: Callable[[Any], None]) -> None:
        """These handlers have seen enough; our others continue."""
        gone = {id(handler) for handler in handlers}
        for topic in {t for t, _ in (*self._before, *self._after)}:
            topic.before = tuple(h for h in topic.before if id(h) not in gone)
            topic.after = tuple(h for h in topic.after if id(h) not in gone)
        self._refresh()
        self._before = [(t, h) for t, h in self._before if id(h) not in gone]
        self._after = [(t, h) for t, h in self._after if id(h) not in gone]

    def stop(self) -> None:
        """Nothing is published to us any more. What was patched for nobody else is put back.

        Not from a handler of STEP, if nobody else listens: torch does not let a hook remove itself while hooks run.
        """
        global _followers
        if self._started:
            self._started = False
            _followers -= 1
            for topic in {t for t, _ in (*self._before, *self._after)}:
                self._drop(topic)
            self._refresh()
            for tap in () if _followers else switch.lasting:
                tap.refresh(self.rebind)

    def _drop(self, topic: Topic[Any]) -> None:
        ours = {id(h) for t, h in (*self._before, *self._after) if t is topic}
        topic.before = tuple(h for h in topic.before if id(h) not in ours)
        topic.after = tuple(h for h in topic.after if id(h) not in ours)

    def _refresh(self) -> None:
        for tap in {t.tap for t, _ in (*self._before, *self._after)}:
            tap.refresh(self.rebind)

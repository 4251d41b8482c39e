"""Where the training thread spends its time: every moment belongs to exactly one phase.

Phases nest (a `.item()` inside a forward); the inner one has the moment. Which of the user's lines runs meanwhile is sampled
from another thread, which only looks.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fallline.instruments.script import Observer
from fallline.location import Location
from fallline.taps.frames import is_user_file, locate, place

if TYPE_CHECKING:
    from fallline.taps.patches import Patches, Wrapped

__all__ = [
    "AHEAD",
    "BACKWARD",
    "COPY",
    "DATA",
    "FORWARD",
    "OPTIMIZER",
    "OTHER",
    "PHASES",
    "STALL",
    "Clock",
    "Stall",
    "tap_copies",
    "tap_stalls",
]

DATA, COPY, FORWARD, BACKWARD = "data wait", "host to device", "forward", "backward"
OPTIMIZER, STALL, OTHER = "optimizer", "host stall", "other"
AHEAD = "device behind"  # what the device still had to do when the host was through
PHASES = (DATA, COPY, FORWARD, BACKWARD, OPTIMIZER, STALL, OTHER, AHEAD)

_EVERY = 0.004  # seconds between two looks at the training thread
_WAITS = ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__")


class Stall:
    """One line that made the host wait for the device."""

    __slots__ = ("at", "count", "seconds", "what")

    def __init__(self, at: Location, what: str) -> None:
        self.at, self.what, self.count, self.seconds = at, what, 0, 0.0


class Clock(Observer):
    """Observes a run; `begin` and `end` a window, read `spent`, `updates`, `stalls` and `lines`."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.updates: list[float] = []  # seconds each
        self.stalls: dict[tuple[Location, str], Stall] = {}
        self.lines: Counter[tuple[str, Location]] = Counter()  # (phase, line) → looks
        self.batches = 0
        self.on = False
        self.mark: Callable[[str], Any] | None = None  # a context that shows a phase in a trace
        self._stack: list[tuple[str, Any]] = []
        self._since = 0.0
        self._update_since = 0.0
        self._sampler: threading.Thread | None = None
        self._thread = threading.get_ident()

    # -- the window --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.on = True
        self._since = self._update_since = time.perf_counter()
        self._sampler = threading.Thread(target=self._look, name="fallline-lines", daemon=True)
        self._sampler.start()

    def end(self) -> None:
        """Safe to call twice."""
        if self.on:
            self._settle()
            self.on = False
        while self._stack:
            self.pop(self._stack[-1][0])
        if self._sampler is not None:
            self._sampler.join()
            self._sampler = None

    def push(self, phase: str) -> None:
        self._settle()
        context = self.mark(phase) if self.mark is not None else None
        if context is not None:
            context.__enter__()
        self._stack.append((phase, context))

    def finish_device(self) -> None:
        """Wait for what the host has asked for; it belongs to the updates that asked."""
        import torch

        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.push(AHEAD)
            _synchronize()
            self.pop(AHEAD)

    def pop(self, phase: str) -> None:
        if self._stack and self._stack[-1][0] == phase:
            self._settle()
            _, context = self._stack.pop()
            if context is not None:
                context.__exit__(None, None, None)

    def _settle(self) -> None:
        if self.on:
            now = time.perf_counter()
            self.spent[self._stack[-1][0] if self._stack else OTHER] += now - self._since
            self._since = now

    def _look(self) -> None:
        while self.on:
            time.sleep(_EVERY)
            frame: Any = sys._current_frames().get(self._thread)
            phase = self._stack[-1][0] if self._stack else OTHER
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None and self.on:
                at = locate(frame.f_code, frame.f_lasti, frame.f_lineno)
                # a line is one line, whichever of its calls was met
                self.lines[phase, Location(at.path, at.line, function=at.function)] += 1

    # -- what the run tells ------------------------------------------------------------------------------------

    def batch_begins(self, iterator: Any) -> None:
        self.push(DATA)

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        self.pop(DATA)
        self.batches += self.on

    def epoch_begins(self, loader: Any) -> None:
        self.pop(DATA)  # the last epoch ended with a StopIteration

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        self.pop(DATA)
        self.push(FORWARD)

    def forward_ends(self, model: Any, output: Any) -> None:
        self.pop(FORWARD)

    def backward_begins(self, loss: Any) -> None:
        self.push(BACKWARD)

    def backward_ends(self) -> None:
        self.pop(BACKWARD)

    def step_begins(self, optimizer: Any) -> None:
        self.push(OPTIMIZER)

    def step_ends(self, optimizer: Any) -> None:
        self.pop(OPTIMIZER)

    def update_ends(self, number: int) -> None:
        if self.on:
            self._settle()
            self.updates.append(self._since - self._update_since)
            self._update_since = self._since

    def waited(self, what: str, at: Location, seconds: float) -> None:
        stall = self.stalls.setdefault((at, what), Stall(at, what))
        stall.count += 1
        stall.seconds += seconds


def _synchronize() -> None:
    import torch

    torch.cuda.current_stream().synchronize()


def tap_stalls(taps: Patches, clock: Callable[[], Clock]) -> None:
    """Time what waits for the device: `.item()` and its kin on its tensors, and synchronize."""
    import torch

    inside = False

    def make(what: str) -> Callable[[Wrapped], Wrapped]:
        def tap(original: Wrapped) -> Wrapped:
            def wait(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                here = clock()
                waits = not args or not isinstance(args[0], torch.Tensor) or args[0].is_cuda
                if not here.on or inside or not waits:
                    return original(*args, **kwargs)
                where = place()
                inside = True
                here.push(STALL)
                begun = time.perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    if where is not None:
                        here.waited(what, where.at, time.perf_counter() - begun)
                    here.pop(STALL)
                    inside = False

            return wait

        return tap

    for name in _WAITS:
        what = {"__float__": "float()", "__int__": "int()", "__bool__": "bool()"}.get(
            name, f".{name}()"
        )
        _tap_tensor(taps, name, make(what))
    taps.patch(torch.cuda, "synchronize", make("torch.cuda.synchronize()"))


def tap_copies(taps: Patches, clock: Callable[[], Clock]) -> None:
    """Time `.to(device)` and `.cuda()` of tensors on the host, and the way back, which waits."""
    import torch

    def make(name: str) -> Callable[[Wrapped], Wrapped]:
        def tap(original: Wrapped) -> Wrapped:
            def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                here = clock()
                target = "cuda" if name == "cuda" else _target(args, kwargs)
                away = tensor.is_cuda
                if not here.on or target != ("cpu" if away else "cuda"):
                    return original(tensor, *args, **kwargs)
                where = place() if away else None
                phase = STALL if away else COPY
                here.push(phase)
                begun = time.perf_counter()
                try:
                    return original(tensor, *args, **kwargs)
                finally:
                    if where is not None:
                        here.waited(".to('cpu')", where.at, time.perf_counter() - begun)
                    here.pop(phase)

            return copy

        return tap

    def _target(args: Any, kwargs: Any) -> str | None:
        for value in (*args[:1], kwargs.get("device"), kwargs.get("other")):
            if isinstance(value, torch.Tensor):
                return value.device.type
            if isinstance(value, torch.device | str):
                return torch.device(value).type
            if isinstance(value, int) and not isinstance(value, bool):
                return "cuda"
        return None

    for name in ("to", "cuda"):
        _tap_tensor(taps, name, make(name))


def _tap_tensor(taps: Patches, name: str, make: Callable[[Wrapped], Wrapped]) -> None:
    """A method of the C++ base: the class gets one of its own, and loses it again."""
    import torch

    if name in torch.Tensor.__dict__:
        taps.patch(torch.Tensor, name, make)
    else:
        setattr(torch.Tensor, name, make(getattr(torch.Tensor, name)))
        taps.on_removal(lambda: delattr(torch.Tensor, name))

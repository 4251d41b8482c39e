"""Where two runs of one script can get different numbers from: seen when it is drawn from, or pinned so that it cannot differ."""

from __future__ import annotations

import os
import random
import sys
import time
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

from fallline.location import Location
from fallline.taps.frames import is_user_file, place
from fallline.taps.patches import Patches, Wrapped

__all__ = ["MEANS", "SOURCES", "Draws", "environment", "pin", "pin_kernels"]

# What a source is called in an answer, and what to do about it
MEANS = {
    "python": ("Python's random, which is not seeded", "random.seed(0) (or fallline.seed_everything(0))"),
    "numpy": ("numpy's random, which is not seeded", "numpy.random.seed(0), and default_rng(0) (or fallline.seed_everything(0))"),
    "torch": ("torch's generator, which starts from a different seed", "torch.manual_seed(0), and no torch.seed()"),
    "hash": ("the order of a set, which changes with PYTHONHASHSEED", "sorted(...) around the set, or a dict, which keeps its order"),
    "clock": ("the clock", "a step counter instead of the time"),
    "entropy": ("the operating system's randomness (os.urandom, uuid, secrets)", "a seeded generator instead"),
    "kernels": ("an operation whose kernel is not deterministic", "torch.use_deterministic_algorithms(True)"),
}  # fmt: skip
SOURCES = tuple(MEANS)

_PYTHON = (
    "random", "randint", "randrange", "uniform", "gauss", "normalvariate", "shuffle", "choice", "choices", "sample",
    "getrandbits", "randbytes", "betavariate", "expovariate", "triangular",
)  # fmt: skip
_NUMPY = (
    "rand", "randn", "randint", "random", "random_sample", "normal", "uniform", "shuffle", "permutation", "choice",
    "standard_normal", "beta", "binomial", "exponential", "poisson", "bytes",
)  # fmt: skip
_CLOCK = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")  # fmt: skip
_TICK = 0.001
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_now = time.monotonic_ns  # never the same twice


class Draws(Patches):
    """Tells of every draw by the user's code: `note(source, place, state)`, where `state` is the same in both runs if the draw was."""

    def __init__(self, note: Callable[[str, Location, int], None]) -> None:
        super().__init__()
        self._note = note

    def install(self) -> None:
        for name in _PYTHON:
            self.patch(random, name, self._telling("python", _python_state))
        for name in _CLOCK:
            self.patch(time, name, self._telling("clock", _now))
        self.patch(os, "urandom", self._telling("entropy", _now))
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            for name in _NUMPY:
                self.patch(numpy.random, name, self._telling("numpy", _numpy_state))
            self.patch(numpy.random, "default_rng", self._generator)

    def _telling(self, source: str, state: Callable[[], int]) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            def drawn(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                self._tell(source, state)
                return result

            return drawn

        return make

    def _generator(self, original: Wrapped) -> Wrapped:
        def default_rng(seed: Any = None) -> Any:
            if seed is None:
                self._tell("numpy", _now)
            return original(seed)

        return default_rng

    def _tell(self, source: str, state: Callable[[], int]) -> None:
        caller = _caller()
        # everyone looks at the clock; only the user's own look can get into what is trained
        if source == "clock" and not is_user_file(caller):
            return
        found = place()
        if found is not None and not caller.startswith(_HERE):
            self._note(source, found.at, state())


def _caller() -> str:
    """The file that calls one of the functions that are replaced here."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else __file__


def _python_state() -> int:
    return hash(random.getstate()[1])  # of integers: the same in every process


def _numpy_state() -> int:
    state = sys.modules["numpy"].random.get_state(legacy=False)
    return zlib.crc32(state["state"]["key"].tobytes()) ^ int(state["state"]["pos"])


def environment(source: str) -> dict[str, str]:
    """What has to be in the environment of a run before it starts."""
    if source == "hash":
        return {"PYTHONHASHSEED": "0"}
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if source == "kernels" else {}


def pin(source: str, patches: Patches) -> None:
    """Make it give the same in every run, as far as it can be had from Python. torch is not imported for it."""
    if source == "python":
        _pin_python(patches)
    elif source == "numpy":
        _pin_numpy(patches)
    elif source == "clock":
        _pin_clock(patches)
    elif source == "entropy":
        _pin_entropy(patches)


def _pin_python(patches: Patches) -> None:
    random.seed(0)

    def seeded(original: Wrapped) -> Wrapped:
        return lambda self, a=None, version=2: original(self, 0 if a is None else a, version)

    patches.patch(random.Random, "seed", seeded)  # random.Random() calls it
    patches.patch(random, "seed", lambda original: lambda a=None, *rest: original(a or 0, *rest))


def _pin_numpy(patches: Patches) -> None:
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(0)
    patches.patch(
        numpy.random,
        "seed",
        lambda original: lambda seed=None: original(0 if seed is None else seed),
    )
    patches.patch(
        numpy.random,
        "default_rng",
        lambda original: lambda seed=None: original(0 if seed is None else seed),
    )


def _pin_clock(patches: Patches) -> None:
    """For the user's own code the clock counts calls; everyone else needs the real one."""
    import datetime

    ticks = [0]

    def tick() -> float:
        ticks[0] += 1
        return ticks[0] * _TICK

    def counting(name: str) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            def now() -> Any:
                if not is_user_file(_caller()):
                    return original()
                return int(tick() * 1e9) if name.endswith("_ns") else tick()

            return now

        return make

    for name in _CLOCK:
        patches.patch(time, name, counting(name))

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(tick(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(tick())

    kept = datetime.datetime
    datetime.datetime = Datetime  # type: ignore[misc]
    patches.on_removal(lambda: setattr(datetime, "datetime", kept))


def _pin_entropy(patches: Patches) -> None:
    source = random.Random(0)
    patches.patch(os, "urandom", lambda original: lambda size: source.randbytes(size))
    patches.patch(random, "_urandom", lambda original: lambda size: source.randbytes(size))


def pin_kernels(source: str) -> None:
    """The same for what torch decides, when it is there."""
    import torch

    if source == "torch":
        torch.manual_seed(0)
        torch.seed = lambda: int(torch.manual_seed(0).initial_seed())
    elif source == "kernels":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.set_num_threads(1)

"""What one run of a script leaves to be compared: fingerprints of every update, and of every operation where that is asked for.

One line of JSON for each update, written at its end, so that a run that dies is readable up to its last update.
"""

from __future__ import annotations

import functools
import json
import math
import random
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from fallline.instruments.same.fingerprint import Fingerprint, fingerprint, resolve, together
from fallline.instruments.same.operations import Operations
from fallline.instruments.script import Observer, Ran
from fallline.location import Location
from fallline.replay.tensors import tensors_in

__all__ = ["Record"]

SAMPLE = 16  # values of each parameter that are kept, to tell rounding from another result
_WRAPPERS = ("module.", "_orig_mod.")


Method = Callable[..., None]


def _aside(method: Method) -> Method:
    """What an observer computes is not an operation of the script."""

    @functools.wraps(method)
    def quiet(self: Record, *args: Any) -> None:
        with self.operations.aside() if self.operations is not None else nullcontext():
            method(self, *args)

    return quiet


class Record(Observer):
    """Writes down a run. Updates count from 0; `until` is the last one whose operations are kept, -1 keeps none."""

    def __init__(
        self, file: TextIO, *, until: int = -1, seconds: float = math.inf, state: bool = False
    ) -> None:
        self._file = file
        self._until = until
        self._state = state
        self._names: dict[int, str] = {}
        self._models: list[nn.Module] = []
        self._optimizers: list[Any] = []
        self._done = 0
        self._row: dict[str, Any] = {}
        self.operations = Operations(seconds) if until >= 0 else None
        self._mode: Operations | None = None

    def started(self) -> None:
        if self.operations is not None:
            self._mode = self.operations
            self._mode.begin()

    def drawn(self, source: str, at: Location, state: int) -> None:
        """The user's code drew a random number, or looked at the clock."""
        if self.operations is not None:
            self.operations.drawn(source, at, state)

    # -- names ---------------------------------------------------------------------------------------------------

    def optimizer_made(self, optimizer: Any) -> None:
        self._optimizers.append(optimizer)

    def _parameters(self) -> dict[str, Tensor]:
        """By name: as the model calls it, else by its place in the optimizer."""
        for model in self._models:
            for name, parameter in model.named_parameters():
                for wrapper in _WRAPPERS:
                    name = name.removeprefix(wrapper)
                if name in self._names.values() and id(parameter) not in self._names:
                    name = f"{type(model).__name__}.{name}"
                self._names.setdefault(id(parameter), name)
        found: dict[str, Tensor] = {}
        for o, optimizer in enumerate(self._optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for i, parameter in enumerate(group["params"]):
                    place = f"parameter {i} of group {g}" + (f" of optimizer {o}" if o else "")
                    found[self._names.get(id(parameter), place)] = parameter
        return found

    # -- one update ----------------------------------------------------------------------------------------------

    @_aside
    def batch_ends(self, iterator: Any, batch: Any) -> None:
        parts = [fingerprint(t) for t in tensors_in(batch)]
        self._row.setdefault("batches", []).append(together(parts))

    @_aside
    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not any(model is known for known in self._models) and torch.is_grad_enabled():
            self._models.append(model)
        if "random" not in self._row:
            self._row["random"] = _random()
            if self.operations is not None:
                self._row["forward_at"] = self.operations.position

    @_aside
    def backward_begins(self, loss: Any) -> None:
        whole = loss[0] if isinstance(loss, list | tuple) and loss else loss
        if isinstance(whole, Tensor):
            self._row.setdefault("losses", []).append(fingerprint(whole))
        if self.operations is not None:
            self.operations.phase = "backward"

    def backward_ends(self) -> None:
        if self.operations is not None:
            self.operations.phase = "forward"

    @_aside
    def step_begins(self, optimizer: Any) -> None:
        parameters = self._parameters()
        first = not self._done or self._state
        if first and "before" not in self._row:
            self._row["before"] = {n: fingerprint(p) for n, p in parameters.items()}
        gradients = self._row.setdefault("gradients", {})
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in parameters.items():
            if id(parameter) in held and parameter.grad is not None:
                gradients[name] = fingerprint(parameter.grad)
        self._row.setdefault("rates", []).extend(
            float(g["lr"]) for g in optimizer.param_groups if "lr" in g
        )
        if self._state:
            names = {id(p): n for n, p in parameters.items()}
            state = self._row.setdefault("state", {})
            for parameter, values in optimizer.state.items():
                parts = [fingerprint(t) for t in tensors_in(values)]
                state[names.get(id(parameter), "?")] = together(parts)
        if self.operations is not None:
            self.operations.phase = "step"

    def step_ends(self, optimizer: Any) -> None:
        if self.operations is not None:
            self.operations.phase = "forward"

    @_aside
    def update_ends(self, number: int) -> None:
        parameters = self._parameters()
        self._row["parameters"] = {n: fingerprint(p) for n, p in parameters.items()}
        self._done = number
        row = {"update": number - 1, **_resolved(self._row)}
        row["values"] = {n: _sample(p) for n, p in parameters.items()}
        self._write(row)
        self._row = {}

    def _write(self, row: dict[str, Any]) -> None:
        if self.operations is not None:
            row["operations"] = self.operations.taken()
            row["full"] = self.operations.full
            if self._done > self._until or self.operations.full:
                self.operations.end()
                self.operations = None
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def ended(self, ran: Ran) -> None:
        """What came after the last update is written too: it may never have come to one."""
        if self._mode is not None:
            self._mode.leave()
        if self.operations is not None:
            left, self.operations = self.operations, None
            self._file.write(
                json.dumps({"update": self._done, "operations": left.taken(), "unfinished": True})
                + "\n"
            )
        end = {"end": True, "updates": ran.updates, "partial": ran.partial, "status": ran.status}
        self._file.write(json.dumps(end) + "\n")


def _random() -> dict[str, int]:
    """The state of every generator on the host."""
    found = {
        "python": hash(random.getstate()[1]),
        "torch": zlib.crc32(bytes(torch.get_rng_state().tolist())),
    }
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)["state"]
        found["numpy"] = zlib.crc32(state["key"].tobytes()) ^ int(state["pos"])
    return found


def _sample(tensor: Tensor) -> list[float]:
    if type(tensor.detach()) not in (Tensor, nn.Parameter) or not tensor.is_floating_point():
        return []
    flat = tensor.detach().reshape(-1)
    return [float(v) for v in flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].double().tolist()]


def _resolved(row: dict[str, Any]) -> dict[str, Any]:
    """The same with numbers for all fingerprints, which are fetched at once."""
    waiting: list[Fingerprint] = []

    def collect(value: Any) -> Any:
        if isinstance(value, Tensor):
            waiting.append(value)
            return len(waiting) - 1, None
        if isinstance(value, dict):
            return {k: collect(v) for k, v in value.items()}
        return [collect(v) for v in value] if isinstance(value, list) else value

    shape = collect(row)
    found = resolve(waiting)

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return found[value[0]]
        if isinstance(value, dict):
            return {k: put(v) for k, v in value.items()}
        return [put(v) for v in value] if isinstance(value, list) else value

    filled: dict[str, Any] = put(shape)
    return filled

"""Looks at every operation of a forward and a backward pass: the type it ran in, what went in and came out, and how far off it is.

Far off is measured against the same operation of a float64 run: operations are matched by the torch function that the user's line
called, how often it was called before, and their place within that call. Each tensor carries the operation to blame for
what is wrong in it, so that a bad loss leads back to the first operation that failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.instruments.precision.formats import FLOATS, Call, Exchange
from fallline.replay.tensors import plain_name, storage, tensors_in

__all__ = ["Operation", "Range", "Recorder", "Reference", "relative_error", "sample"]

SAMPLE = 2_048
# A loss of digits that is worth a name: ten times what came in, and at least this.
JUMP, WRONG = 10.0, 0.05
_UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
# Sums that cancel to nothing have no digits to lose: a bias before a normalisation has a gradient of rounding errors.
_SUMS = {"sum", "mean", "add", "sub", "matmul", "linear", "conv", "batch_norm_backward", "layer_norm_backward"}  # fmt: skip
CANCELLED = 1e-6
# Operations that turn a value that was flushed to zero into an infinity or a NaN.
_ZERO_BREAKS = {"div", "reciprocal", "log", "log2", "log10", "rsqrt", "sqrt", "pow", "norm", "log_softmax"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Range:
    """Of absolute values: the smallest that is not zero, and the largest that is finite. `bad` are NaN or Inf."""

    smallest: float
    largest: float
    bad: int = 0

    @classmethod
    def of(cls, tensors: list[Tensor]) -> Range | None:
        parts = []
        for tensor in tensors:
            if tensor.numel():
                size = tensor.detach().abs()
                fine = torch.isfinite(size)
                parts.append(
                    torch.stack(
                        [
                            torch.where(fine & (size > 0), size, torch.inf).min().double(),
                            torch.where(fine, size, 0).max().double(),
                            (~fine).sum().double(),
                        ]
                    )
                )
        if not parts:
            return None
        rows = torch.stack(parts).tolist()  # one wait for the device
        smallest = min(r[0] for r in rows)
        return cls(
            smallest if smallest != float("inf") else 0.0,
            max(r[1] for r in rows),
            int(sum(r[2] for r in rows)),
        )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"smallest": self.smallest, "largest": self.largest}
        return found | {"nonfinite": self.bad} if self.bad else found


@dataclass(slots=True)
class Operation:
    """One operation as it really ran."""

    index: int
    op: str
    phase: str  # "forward" | "backward"
    dtype: str
    call: Call | None
    given: Range | None = None
    made: Range | None = None
    overflow: int = (
        0  # results that are not finite though what went in was, and the float64 run's are
    )
    underflow: float = 0.0  # share of results that are zero where float64's are not
    error: float | None = None  # relative to the float64 run
    matmul: tuple[int, int, int, int] | None = None  # batch, m, k, n
    transposed: tuple[bool, bool] = (False, False)  # how its two matrices lie in memory

    @property
    def module(self) -> str | None:
        return self.call.module if self.call is not None else None

    def to_json(self) -> dict[str, Any]:
        at = self.call.at if self.call is not None else None
        found: dict[str, Any] = {
            "op": self.op,
            "phase": self.phase,
            "dtype": self.dtype,
            "module": self.module,
            "path": at.path if at else None,
            "line": at.line if at else None,
            "input": self.given.to_json() if self.given else None,
            "output": self.made.to_json() if self.made else None,
            "overflow": self.overflow,
            "underflow": self.underflow,
            "relative_error": self.error,
        }
        return found


@dataclass
class _Known:
    """What is wrong in a tensor, and which operation did it."""

    error: float
    blame: Operation | None
    flushed: Operation | None
    bad: bool


class Reference:
    """Samples of every result of the float64 run, and the random numbers that it drew."""

    def __init__(self) -> None:
        self.samples: dict[Any, tuple[Tensor, int]] = {}
        self.random: dict[Any, list[Tensor]] = {}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation with a floating-point result."""

    def __init__(self, exchange: Exchange, reference: Reference, *, is_reference: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.exchange = exchange
        self.reference = reference
        self.is_reference = is_reference
        self.operations: list[Operation] = []
        self._known: dict[int, _Known] = {}
        self._within: dict[Any, int] = {}
        self._drawn: dict[Any, int] = {}

    def blame(self, tensor: Tensor) -> Operation | None:
        known = self._known.get(storage(tensor))
        return known.blame if known is not None else None

    def flushed(self, tensor: Tensor) -> Operation | None:
        known = self._known.get(storage(tensor))
        return known.flushed if known is not None else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction(), torch.no_grad():
            given = [t for t in tensors_in((args, kwargs)) if _is_float(t)]
            before = Range.of(given) if given and not self.is_reference else None
            known = [k for t in given if (k := self._known.get(storage(t))) is not None]
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if torch.Tag.nondeterministic_seeded in func.tags:
                self._same_random(func, args, [result] if isinstance(result, Tensor) else result)
            made = [t for t in tensors_in(result) if _is_float(t) and t.numel()]
            if made and not _is_view(func, made, given) and not self._only_copied(given, made):
                self._note(func, args, given, before, known, made)
        return result

    def _only_copied(self, given: list[Tensor], made: list[Tensor]) -> bool:
        """Our own copy of a tensor is not an operation, unless it changes the type, as `model.half()` does."""
        return self.exchange.copying and (not given or given[0].dtype is made[0].dtype)

    # -- one operation -----------------------------------------------------------------------------------------

    def _note(
        self,
        func: Any,
        args: Any,
        given: list[Tensor],
        before: Range | None,
        known: list[_Known],
        made: list[Tensor],
    ) -> None:
        name = plain_name(func._schema.name)
        if name in _UNWRITTEN:
            return
        node = torch._C._current_autograd_node()
        call = self.exchange.current
        if node is not None:
            call = self.exchange.call_of(node._sequence_nr()) or call
        phase = "backward" if node is not None else "forward"
        cast = name == "to"
        key = (phase, call.key if call is not None else None, name)
        place = self._within[key] = self._within.get(key, -1) + 1
        if self.is_reference:
            if not cast:
                for i, tensor in enumerate(made):
                    bad = int((~torch.isfinite(tensor)).sum())
                    self.reference.samples[key, place, i] = (sample(tensor).double(), bad)
            return
        operation = Operation(
            len(self.operations), name, phase, _ran_in(given, made), call, before, Range.of(made)
        )
        operation.matmul, operation.transposed = matmul_shape(func, args)
        self.operations.append(operation)
        if cast:
            self._compare_cast(operation, given, made)
            error = max([operation.error or 0.0, *(k.error for k in known)])
            operation.error = error
        else:
            error = self._compare(operation, (key, place), made, known)
        self._judge(operation, error, known, made)

    def _compare(
        self, operation: Operation, key: Any, made: list[Tensor], known: list[_Known]
    ) -> float:
        errors, flushed, wanted_bad, counted = [], 0.0, 0, 0
        for i, tensor in enumerate(made):
            wanted = self.reference.samples.get((*key, i))
            here = sample(tensor).double()
            if wanted is None or wanted[0].shape != here.shape:
                continue
            there, bad = wanted
            counted += 1
            wanted_bad += bad
            there = there.to(here.device)
            if operation.op in _SUMS and operation.given is not None:
                if float(there.abs().max()) < CANCELLED * operation.given.largest:
                    errors.append(0.0)
                    continue
            errors.append(relative_error(here, there))
            alive = there != 0
            count = int(alive.sum())
            if count:
                flushed = max(flushed, int((alive & (here == 0)).sum()) / count)
        bad_here = operation.made.bad if operation.made is not None else 0
        operation.underflow = flushed
        operation.overflow = max(bad_here - wanted_bad, 0)
        if counted:
            operation.error = max(errors)
        return (
            operation.error
            if counted and operation.error is not None
            else max([k.error for k in known], default=0.0)
        )

    def _compare_cast(self, operation: Operation, given: list[Tensor], made: list[Tensor]) -> None:
        """A cast is compared with what went in: whether the narrower type can hold it."""
        if not given or given[0].shape != made[0].shape:
            return
        there, here = sample(given[0]).double(), sample(made[0]).double()
        operation.error = relative_error(here, there)
        alive = there != 0
        if bool(alive.any()):
            operation.underflow = int((alive & (here == 0)).sum()) / int(alive.sum())
        before = operation.given.bad if operation.given is not None else 0
        after = operation.made.bad if operation.made is not None else 0
        operation.overflow = max(after - before, 0)

    def _judge(
        self,
        operation: Operation,
        error: float,
        known: list[_Known],
        made: list[Tensor],
    ) -> None:
        """Who is to blame for what is wrong in the results."""
        earlier = [k for k in known if k.blame is not None]
        flushed = min(
            (k.flushed for k in known if k.flushed is not None), key=lambda o: o.index, default=None
        )
        # a cast hands on what was bad already
        bad = operation.overflow > 0 or (operation.op == "to" and any(k.bad for k in known))
        blame: Operation | None = None
        if bad:
            inherited = [k.blame for k in earlier if k.bad and k.blame is not None]
            if inherited:
                blame = min(inherited, key=lambda o: o.index)
            elif flushed is not None and operation.op in _ZERO_BREAKS:
                blame = flushed
            else:
                blame = operation
        elif error > WRONG:
            worst = max(known, key=lambda k: k.error, default=None)
            blame = operation
            if worst is not None and worst.blame is not None:
                if not error > JUMP * max(worst.error, WRONG):
                    blame = worst.blame
        if operation.underflow > 0:
            flushed = flushed or operation
        for tensor in made:
            self._known[storage(tensor)] = _Known(error, blame, flushed, bad)

    def _same_random(self, func: Any, args: Any, made: Any) -> None:
        """Every format gets the random numbers of the reference: else dropout would look like an error."""
        call = self.exchange.current
        drawn = [t for t in made if isinstance(t, Tensor)]
        key = (call.key if call is not None else None, func._schema.name)
        place = self._drawn[key] = self._drawn.get(key, -1) + 1
        if self.is_reference:
            self.reference.random[key, place] = [t.detach().clone() for t in drawn]
            return
        wanted = self.reference.random.get((key, place), [])
        if [t.shape for t in wanted] != [t.shape for t in drawn]:
            return
        if func._schema.name == "aten::native_dropout":
            out, mask = drawn
            mask.copy_(wanted[1])
            out.copy_(args[0] * mask / (1 - args[1]) if args[1] < 1 else out)
            return
        for tensor, value in zip(drawn, wanted, strict=True):
            tensor.copy_(value)


def _ran_in(given: list[Tensor], made: list[Tensor]) -> str:
    """The widest type that went in; a result alone where nothing did (a factory function)."""
    dtype = (given or made)[0].dtype
    for tensor in given[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return str(dtype).removeprefix("torch.")


def _is_float(tensor: Tensor) -> bool:
    return (
        tensor.dtype in FLOATS and tensor.layout is torch.strided and tensor.device.type != "meta"
    )


def _is_view(func: Any, made: list[Tensor], given: list[Tensor]) -> bool:
    if func._schema.is_mutable:
        return False
    shown = {storage(t) for t in given}
    return all(storage(t) in shown for t in made)


def sample(tensor: Tensor, size: int = SAMPLE) -> Tensor:
    """The same few elements of every tensor of one shape, evenly spread."""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() // size) if flat.numel() > size else 1
    if step > 1 and step % 2 == 0:
        step += 1  # rows have even lengths: do not look at one column alone
    return flat[::step].clone()


def relative_error(here: Tensor, there: Tensor) -> float:
    """Norm of the difference over norm of what is right; infinities that both have do not count."""
    meant = ~torch.isfinite(there)
    difference = torch.where(meant, 0.0, here - there)
    size = torch.where(meant, 0.0, there)
    off, whole = torch.stack([difference.norm(), size.norm()]).tolist()
    if off != off:
        return float("inf")
    if whole == 0:
        return 0.0 if off == 0 else float("inf")
    return float(off / whole)


def matmul_shape(
    func: Any, args: Any
) -> tuple[tuple[int, int, int, int] | None, tuple[bool, bool]]:
    """(batch, m, k, n) where this is a product of matrices; of a convolution k and n are its channels. And which are transposed."""
    name = func._schema.name.rpartition("::")[2]
    two = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}.get(name)
    if two is not None:
        a, b = args[two[0]], args[two[1]]
        shape = (a.shape[0] if a.ndim == 3 else 1, a.shape[-2], a.shape[-1], b.shape[-1])
        return shape, (a.stride(-1) != 1, b.stride(-1) != 1)
    if name in ("convolution", "cudnn_convolution", "mkldnn_convolution") and args[1].ndim > 2:
        x, w = args[0], args[1]
        shape = (1, x.shape[0] * math.prod(x.shape[2:]), w.shape[1], w.shape[0])
        return shape, (False, False)
    return None, (False, False)

"""Every tensor storage of a run from birth to death: where it was allocated, in which module and phase, and what it became.

A dispatch mode sees the storages that operations return, a weak reference tells when one goes. Nothing is kept alive, no value
is read, no kernel is another one than without it. What a kernel allocates for itself is not seen (on CUDA the allocator knows).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from fallline.instruments.script import Observer
from fallline.location import Location
from fallline.replay.tensors import tensors_in
from fallline.taps.frames import place

__all__ = ["Account", "Entry", "Exhausted", "Ledger", "Peak", "is_out_of_memory"]

# What a storage turned out to be. A temporary is all that has no other role.
PARAMETERS, BUFFERS, GRADIENTS, STATE = "parameters", "buffers", "gradients", "optimizer state"
ACTIVATIONS, BATCH, TEMPORARY = "activations", "batch", "temporary"
GIVEN = "given"  # the operation of a storage that is older than our looking at it


@dataclass(slots=True, eq=False)
class Entry:
    """One storage."""

    size: int
    device: str
    op: str
    at: Location | None  # the user's line
    module: str  # path of the innermost module that ran; "" outside of any
    phase: str  # "setup" | "data" | "forward" | "backward" | "optimizer" | "between"
    update: int  # the update in which it was made, from 0
    floating: int  # bytes per number; 0 where they are not floating point
    grad: bool  # made while autograd was recording
    role: str = TEMPORARY
    alive: bool = True


@dataclass(slots=True)
class Peak:
    """The most that lived at one moment of one update on one device."""

    size: int = 0
    update: int = 0
    last: Entry | None = None  # the allocation that made it
    phase: str = ""
    held: list[Entry] = field(default_factory=list)
    log: list[tuple[bool, Entry]] = field(default_factory=list)  # the whole update: (born, entry)
    base: list[Entry] = field(default_factory=list)  # what lived when the update began


@dataclass(slots=True)
class Exhausted:
    """The moment at which there was no memory left."""

    message: str
    op: str
    at: Location | None
    module: str
    phase: str
    update: int
    held: list[Entry]


class Account:
    """What lives on one device."""

    def __init__(self) -> None:
        self.total = 0
        self.highest = Peak()  # of all updates
        self.before = 0  # the highest moment before training
        self.now = Peak()  # of this one
        self._length = 0  # of the log at this update's peak

    def born(self, entry: Entry, update: int, phase: str) -> None:
        self.total += entry.size
        self.now.log.append((True, entry))
        if self.total > self.now.size:
            self.now.size, self.now.update, self.now.last = self.total, update, entry
            self.now.phase = phase
            self._length = len(self.now.log)

    def died(self, entry: Entry) -> None:
        self.total -= entry.size
        self.now.log.append((False, entry))

    def training_begins(self) -> None:
        """What it took to get here (reading data, building the model) is another question."""
        self.close()
        self.before, self.highest = self.highest.size, Peak()

    def close(self) -> None:
        """The update is over: keep its peak if it is the highest, and begin again."""
        if self.now.size > self.highest.size:
            held = dict.fromkeys(self.now.base)
            for born, entry in self.now.log[: self._length]:
                if born:
                    held[entry] = None
                else:
                    held.pop(entry, None)
            self.now.held = list(held)
            self.highest = self.now
        alive = dict.fromkeys(self.now.base)
        alive.update((entry, None) for born, entry in self.now.log if born)
        self.now = Peak(base=[entry for entry in alive if entry.alive], size=self.total)
        self._length = 0


class Ledger(Observer):
    """Observes a run; `accounts` by device."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.entries: dict[int, tuple[weakref.ref[Any], Entry]] = {}  # by storage
        self.update = 0
        self.phase = "setup"
        self.grew: list[dict[str, int]] = []  # bytes that live after each update, by device
        self.exhausted: Exhausted | None = None
        self.saved: list[Entry] = []  # the activations at the beginning of the largest backward
        self.trouble: Exception | None = None  # ours
        self._names: dict[int, str] = {}  # id of module → path
        self._stack: list[str] = []
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._backward_at: Location | None = None
        self._mode = _Mode(self)
        self._pid = os.getpid()

    # -- storages ----------------------------------------------------------------------------------------------

    def started(self) -> None:
        self._mode.__enter__()

    def stop(self) -> None:
        """Look no further. Safe to call twice."""
        if self._mode.on:
            self._mode.__exit__(None, None, None)

    @contextmanager
    def blind(self) -> Iterator[None]:
        """What happens in here is ours, not the script's."""
        self._mode.blind += 1
        try:
            yield
        finally:
            self._mode.blind -= 1

    def see(self, tensors: Iterable[torch.Tensor], op: str, inputs: Any = ()) -> None:
        """Enter the storages that are not known yet. One that an input has too is older than the operation."""
        for tensor in tensors:
            for plain in _plain(tensor):
                try:
                    storage = plain.untyped_storage()
                    size = storage.nbytes()
                except (NotImplementedError, RuntimeError):  # sparse, meta, or without storage
                    continue
                known = self.entries.get(storage._cdata)
                if (known is None or known[0]() is not storage) and plain.device.type != "meta":
                    older = any(_same(t, storage) for t in tensors_in(inputs))
                    self._enter(storage, size, plain, GIVEN if older else op)

    def _enter(self, storage: Any, size: int, tensor: torch.Tensor, op: str) -> None:
        where = place()
        entry = Entry(
            size,
            str(tensor.device),
            op,
            where.at if where is not None else self._backward_at,
            self._stack[-1] if self._stack else "",
            "setup" if op == GIVEN else self.phase,
            self.update,
            tensor.element_size() if tensor.is_floating_point() else 0,
            torch.is_grad_enabled(),
        )
        key = storage._cdata

        def gone(reference: Any) -> None:
            entry.alive = False
            self.accounts[entry.device].died(entry)
            if self.entries.get(key, (None,))[0] is reference:
                del self.entries[key]

        self.entries[key] = (weakref.ref(storage, gone), entry)
        self.accounts.setdefault(entry.device, Account()).born(entry, self.update, self.phase)

    def entry_of(self, tensor: torch.Tensor) -> Entry | None:
        """The entry of a tensor's storage, if it is known."""
        try:
            known = self.entries.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return None
        return known[1] if known is not None else None

    def out_of_memory(self, error: BaseException, op: str) -> None:
        """No memory for the result of `op`: write down who holds it now, before anything is given back."""
        where = place()
        self.settle()
        self.exhausted = Exhausted(
            str(error),  # not the error itself, which holds every frame and what is in it
            op,
            where.at if where is not None else self._backward_at,
            self._stack[-1] if self._stack else "",
            self.phase,
            self.update,
            self.living(),
        )

    def living(self) -> list[Entry]:
        return [entry for _, entry in list(self.entries.values())]

    def _is(self, role: str, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            for plain in _plain(tensor):
                self.see((plain,), GIVEN)
                entry = self.entry_of(plain)
                if entry is not None:
                    entry.role = role

    # -- what the run tells ------------------------------------------------------------------------------------

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._optimizers.append(optimizer)

    def batch_begins(self, iterator: Any) -> None:
        self.phase = "data"

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        with self.blind():
            self._is(BATCH, tensors_in(batch))
        self.phase = "between"

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._models:
            for account in self.accounts.values():
                account.training_begins()
        if not any(model is known for known in self._models):
            self._models.append(model)
            for path, module in model.named_modules():
                self._names.setdefault(id(module), path or type(module).__name__)
        self.phase = "forward"
        with self.blind():
            self._is(PARAMETERS, model.parameters())
            self._is(BUFFERS, model.buffers())
            inputs = tensors_in((args, kwargs))
            self.see(inputs, GIVEN)
            for tensor in inputs:
                entry = self.entry_of(tensor)
                if entry is not None and entry.role == TEMPORARY and not tensor.requires_grad:
                    entry.role = BATCH

    def forward_ends(self, model: nn.Module, output: Any) -> None:
        self.phase = "between"

    def module_begins(self, module: nn.Module) -> None:
        above = self._stack[-1] if self._stack else ""
        self._stack.append(self._names.get(id(module), above))

    def module_ends(self, module: nn.Module) -> None:
        self._stack.pop()

    def backward_begins(self, loss: Any) -> None:
        """What a forward made and what still lives is what the graph (or the user) holds: the activations."""
        where = place()
        self._backward_at = where.at if where is not None else None
        self.settle()
        saved = [entry for entry in self.living() if entry.role == ACTIVATIONS]
        if sum(e.size for e in saved) > sum(e.size for e in self.saved):
            self.saved = saved
        self.phase = "backward"

    def settle(self) -> None:
        """Tell activations from temporaries: what was made with gradients on, in this update, and lives."""
        for entry in self.living():
            if (
                entry.role == TEMPORARY
                and entry.update == self.update
                and entry.grad
                and entry.phase in ("forward", "between")
                and (entry.module or entry.floating)
            ):
                entry.role = ACTIVATIONS

    def backward_ends(self) -> None:
        self.phase = "between"
        self._backward_at = None

    def step_begins(self, optimizer: Optimizer) -> None:
        with self.blind():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._is(PARAMETERS, parameters)
            self._is(GRADIENTS, (p.grad for p in parameters if p.grad is not None))
        self.phase = "optimizer"

    def step_ends(self, optimizer: Optimizer) -> None:
        with self.blind():
            self._is(STATE, tensors_in(list(optimizer.state.values())))
        self.phase = "between"

    def update_ends(self, number: int) -> None:
        for account in self.accounts.values():
            account.close()
        self.grew.append({device: account.total for device, account in self.accounts.items()})
        self.update = number

    def device(self) -> str:
        """Where the parameters are; else where most lives."""
        sizes: dict[str, int] = {}
        for entry in self.living():
            if entry.role == PARAMETERS:
                sizes[entry.device] = sizes.get(entry.device, 0) + entry.size
        if not sizes:
            sizes = {d: max(a.highest.size, a.now.size) for d, a in self.accounts.items()}
        return max(sizes, key=lambda d: sizes[d]) if sizes else "cpu"


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands what operations return to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.blind = 0
        self.on = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # or torch.compile would leave everything uncompiled while we look

    def __enter__(self) -> Any:
        self.on = True
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self.on = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a worker of a loader is a copy of this process and has nothing to tell
        looking = not self.blind and os.getpid() == self.ledger._pid
        name = func.overloadpacket.__name__
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if looking and is_out_of_memory(error):
                self._tell(self.ledger.out_of_memory, error, name)
            raise
        if looking:
            found = (result,) if isinstance(result, torch.Tensor) else tensors_in(result)
            self._tell(self.ledger.see, found, name, args)
        return result

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        """What goes wrong in here must not go wrong in the script; it is heard when the measurement ends."""
        try:
            method(*args)
        except Exception as error:
            self.ledger.trouble = error
            self.blind += 1


def is_out_of_memory(error: BaseException) -> bool:
    """An accelerator's allocator says it by type, the one of the CPU by its text, Python by MemoryError."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    text = str(error)
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError)
        and ("DefaultCPUAllocator" in text or "out of memory" in text.lower())
    )


def _same(tensor: torch.Tensor, storage: Any) -> bool:
    try:
        return bool(tensor.untyped_storage()._cdata == storage._cdata)
    except (NotImplementedError, RuntimeError):
        return False


def _plain(tensor: Any) -> list[torch.Tensor]:
    """A tensor that wraps others (DTensor) holds no memory of its own."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in _plain(part)]

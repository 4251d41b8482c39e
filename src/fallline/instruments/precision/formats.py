"""The number formats that a piece of training code is run in, and how it is made to run in them without being changed.

Every tensor that was there before the run is exchanged for a copy in the format's type where a torch function is given it; the
originals are never written to. The code's own `autocast` is turned to the format's type, or off; where it switches autocast off for a
stretch, it stays off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fallline.instruments.untouched import World
from fallline.instruments.where import user_line
from fallline.location import Location
from fallline.replay.modules import Modules

__all__ = [
    "FLOATS",
    "FORMATS",
    "NARROW_REFERENCE",
    "REFERENCE",
    "Call",
    "Change",
    "Exchange",
    "Format",
    "Site",
    "functions_exchanged",
    "own_autocast",
]


@dataclass(frozen=True)
class Format:
    """`tensors`: the type of parameters and inputs; `autocast`: the type autocast chooses, if it is on."""

    name: str
    tensors: torch.dtype
    autocast: torch.dtype | None = None
    reference: bool = False  # what the others are held against: everything runs in its type

    @property
    def half(self) -> torch.dtype | None:
        """The 16-bit type that it is about; None for float32 and float64."""
        if self.autocast is not None:
            return self.autocast
        return self.tensors if self.tensors in (torch.float16, torch.bfloat16) else None

    @property
    def pure(self) -> bool:
        return self.half is not None and self.autocast is None


REFERENCE = Format("fp64", torch.float64, reference=True)
NARROW_REFERENCE = Format("fp32", torch.float32, reference=True)  # where memory is short
FORMATS = (
    Format("fp32", torch.float32),
    Format("fp16 autocast", torch.float32, torch.float16),
    Format("bf16 autocast", torch.float32, torch.bfloat16),
    Format("fp16 pure", torch.float16),
    Format("bf16 pure", torch.bfloat16),
)

# What a user can change: the torch function called on one line of one module.
Site = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a torch function in the forward pass."""

    function: str
    module: str | None
    at: Location | None
    occurrence: int  # how often this site has been called before

    @property
    def site(self) -> Site:
        path, line = (self.at.path, self.at.line) if self.at is not None else ("", 0)
        return (self.module or "", path, line, self.function)

    @property
    def key(self) -> tuple[Any, ...]:
        column = self.at.column if self.at is not None else 0
        return (*self.site, column, self.occurrence)


Function = Callable[..., Any]


@dataclass(frozen=True)
class Change:
    """What is tried at a site: `apply(function, args, kwargs)` stands in for the call."""

    kind: str
    apply: Callable[[Function, Any, Any], Any] = field(compare=False)


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CONVERSIONS = {"to", "float", "half", "bfloat16", "type", "type_as"}
_ACCESS = {"__get__", "__set__", "__delete__"}
_WORDS = {
    "truediv": "div", "rtruediv": "div", "rdiv": "div", "rmul": "mul", "radd": "add", "rsub": "sub",
    "rpow": "pow", "rmatmul": "matmul", "itruediv": "div", "imul": "mul", "iadd": "add", "isub": "sub",
}  # fmt: skip


class Exchange(TorchFunctionMode):
    """Gives every torch function the format's copies, and knows which function of the user's is being called."""

    def __init__(
        self,
        world: World,
        format: Format,
        modules: Modules,
        changes: dict[Site, Change] | None = None,
    ) -> None:
        super().__init__()
        self.world = world
        self.format = format
        self.modules = modules
        self.changes = changes or {}
        self.copies: dict[int, Tensor] = {}
        self.current: Call | None = None
        self.copying = False
        self.changed: dict[Site, Call] = {}
        self._counts: dict[Site, int] = {}
        self._began: list[int] = []  # autograd's sequence number when a call began
        self._calls: list[Call] = []

    @property
    def leaves(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors that gradients are asked for: the user's, and the copy that was used for it."""
        return [(self.world.tensors[k], c) for k, c in self.copies.items() if c.requires_grad]

    def call_of(self, number: int) -> Call | None:
        """The call in which the node of the graph with this sequence number was made."""
        from bisect import bisect_right

        at = bisect_right(self._began, number) - 1
        return self._calls[at] if at >= 0 else None

    def given(self, value: Any) -> Any:
        """The copy that stands for a tensor of the user's."""
        if not isinstance(value, Tensor):
            return value
        original = self.world.tensors.get(id(value))
        if original is None:
            return self._raised(value) if self.format.reference else value
        copy = self.copies.get(id(value))
        if copy is None:
            dtype = self.format.tensors if original.dtype in FLOATS else original.dtype
            self.copying = True
            # below any transform of torch.func: the copy is a leaf of the whole code
            with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
                copy = original.detach().to(dtype, copy=True)
                copy.requires_grad = original.requires_grad and copy.dtype in FLOATS
            self.copying = False
            self.copies[id(value)] = copy
        return copy

    def _raised(self, value: Tensor) -> Tensor:
        """In the reference everything is of its type, also what the code makes in a narrower one."""
        wide = self.format.tensors
        if value.dtype in FLOATS and value.dtype.itemsize < wide.itemsize:
            return value.to(wide)
        return value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tree_map(self.given, args)
        kwargs = tree_map(self.given, kwargs or {})
        name = getattr(func, "__name__", str(func))
        if name in _ACCESS:
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention" and kwargs.get("dropout_p"):
            kwargs = kwargs | {"dropout_p": 0.0}  # its mask differs between types
        return self.called(func, name, args, kwargs)

    def called(self, func: Function, name: str, args: Any, kwargs: Any) -> Any:
        """Run a torch function, knowing where it was called."""
        if self.current is not None:
            return func(*args, **kwargs)
        self.current = call = self._begin(name)
        try:
            change = self.changes.get(call.site) or self.changes.get(("", "", 0, call.function))
            if change is not None and not _in_place(name):
                self.changed.setdefault(call.site, call)
                return change.apply(func, args, kwargs)
            result = func(*args, **kwargs)
            if self.changes and isinstance(result, Tensor):
                # the log of what this made may be asked for without it: see changes.py
                result._fallline_made = (call.function, func, args, kwargs)  # type: ignore[attr-defined]
            if self.format.reference:
                if name in _CONVERSIONS and isinstance(result, Tensor) and _narrower(result, args):
                    return args[0].to(self.format.tensors)
                result = tree_map(lambda x: self._raised(x) if isinstance(x, Tensor) else x, result)
            return result
        finally:
            self.current = None

    def _begin(self, name: str) -> Call:
        word = name.strip("_")
        word = _WORDS.get(word, word)
        module, at = self.modules.current, user_line()
        site = (module or "", at.path if at else "", at.line if at else 0, word)
        occurrence = self._counts[site] = self._counts.get(site, -1) + 1
        call = Call(word, module, at, occurrence)
        self._began.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._calls.append(call)
        return call


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _narrower(result: Tensor, args: Any) -> bool:
    return (
        result.dtype in FLOATS
        and bool(args)
        and isinstance(args[0], Tensor)
        and args[0].is_floating_point()
    )


@contextlib.contextmanager
def functions_exchanged(exchange: Exchange) -> Iterator[None]:
    """`MyFunction.apply` and activation checkpointing do not pass through torch's function modes."""
    import torch.utils.checkpoint as checkpoint

    apply = torch.autograd.Function.__dict__["apply"]

    def apply_exchanged(cls: Any, *args: Any, **kwargs: Any) -> Any:
        def call(*inner: Any, **options: Any) -> Any:
            return apply.__func__(cls, *inner, **options)

        args, kwargs = tree_map(exchange.given, args), tree_map(exchange.given, kwargs)
        return exchange.called(call, cls.__name__, args, kwargs)

    class Direct:
        @staticmethod
        def apply(function: Function, preserve: bool, *args: Any) -> Any:
            return function(*args)

    def straight(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    reentrant = checkpoint.CheckpointFunction
    other = checkpoint._checkpoint_without_reentrant_generator
    torch.autograd.Function.apply = classmethod(apply_exchanged)  # type: ignore[assignment]
    checkpoint.CheckpointFunction = Direct  # type: ignore[misc, assignment]
    checkpoint._checkpoint_without_reentrant_generator = straight
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]
        checkpoint._checkpoint_without_reentrant_generator = other


@contextlib.contextmanager
def own_autocast(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast of this type around everything, and in place of what the code itself switches on; None: off everywhere."""
    original: Function = torch.amp.autocast.__enter__

    def enter(context: Any) -> Any:
        entered = original(context)
        if context._enabled and context.device == device:
            torch.set_autocast_enabled(device, dtype is not None)
            if dtype is not None:
                torch.set_autocast_dtype(device, dtype)
        return entered

    torch.amp.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        if dtype is None:
            yield
        else:
            with torch.autocast(device, dtype=dtype):
                yield
    finally:
        torch.amp.autocast.__enter__ = original  # type: ignore[method-assign]

"""Which operations autocast runs in which type here: every operation that torch treats specially is called, and watched.

The list comes from torch's dispatcher. Each operation is called under autocast with float32, with half and with mixed
inputs, and stopped as soon as it reaches the device: what type its inputs have there is the answer. Without a GPU the
same is asked for CUDA with tensors that have no memory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.errors import UsageError
from fallline.replay.tensors import tensors_in

__all__ = ["AutocastTable", "autocast_table"]

_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}
# What people ask about, whether torch treats it specially or not.
_COMMON = (
    "add.Tensor", "mul.Tensor", "div.Tensor", "sub.Tensor", "mean", "var.correction", "std.correction", "max", "sqrt", "sigmoid", "tanh",
    "relu", "gelu", "silu", "exp", "log", "log1p", "pow.Tensor_Scalar", "softmax.int", "log_softmax.int", "logsumexp", "sum", "cumsum",
    "linalg_vector_norm", "layer_norm", "group_norm", "batch_norm", "rms_norm", "embedding", "cat", "stack", "where.self", "masked_fill.Scalar",
    "matmul", "linear", "conv2d", "bmm", "scaled_dot_product_attention", "mse_loss", "cross_entropy_loss", "nll_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "cdist", "rsqrt", "reciprocal",
)  # fmt: skip
_WORDS = {
    "half": "cast to half",
    "float32": "cast to float32",
    "widest": "the widest type among its inputs",
    "given": "as it is given",
    "refused": "refuses to run",
}


@dataclass
class AutocastTable:
    """Per operation: "half", "float32", "widest", "given", "refused", or None where it could not be called."""

    device: str
    pretended: bool  # no such device here: tensors without memory
    rules: dict[str, str | None]
    refusals: dict[str, str] = field(default_factory=dict)
    special: int = 0
    partial: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "torch": torch.__version__,
            "pretended_device": self.pretended,
            "rules": self.rules,
            "refusals": self.refusals,
            "special": self.special,
            "partial": self.partial,
        }

    def text(self) -> str:
        how = ", tested with meta tensors: there is no such device here" if self.pretended else ""
        lines = [
            f"autocast on {self.device}, torch {torch.__version__}{how}: "
            f"{self.special} operations are treated specially, every other runs as it is given",
            "(an operation that is made of others is judged by the first of them)",
            "",
        ]
        for rule, words in _WORDS.items():
            names = sorted(n for n, r in self.rules.items() if r == rule)
            if names:
                lines += [f"{words}:", *_wrapped(names), ""]
        unknown = sorted(n for n, r in self.rules.items() if r is None)
        if unknown:
            lines += ["treated specially, but not called here:", *_wrapped(unknown), ""]
        return "\n".join(lines)


def autocast_table(device: str | None = None) -> AutocastTable:
    """Ask torch for this kind of device; the GPU where there is one, else the CPU."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in _KEYS:
        raise UsageError(f"--device {device}: there is a table for cpu and one for cuda")
    pretended = device == "cuda" and not torch.cuda.is_available()
    names = torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[device])
    special = {n.removeprefix("aten::") for n in names if n.startswith("aten::")}
    rules: dict[str, str | None] = {}
    refusals: dict[str, str] = {}
    partial = False
    try:
        with _quiet(), _tensors(pretended), _autocast(device), torch.no_grad():
            for name in sorted(special | set(_COMMON)):
                rules[name] = _ask(name, name in special, device, refusals)
    except KeyboardInterrupt:
        partial = True
    return AutocastTable(device, pretended, rules, refusals, len(special), partial)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's C++ code writes to the error stream itself when an operation is deprecated."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _tensors(pretended: bool) -> Iterator[None]:
    if not pretended:
        yield
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        yield


@contextlib.contextmanager
def _autocast(device: str) -> Iterator[None]:
    """Switched on directly: `torch.autocast("cuda")` does nothing where there is no GPU."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, _half(device))
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.set_autocast_cache_enabled(cached)


def _half(device: str) -> torch.dtype:
    """float16 and bfloat16 are treated alike; the device's own default is asked."""
    return torch.float16 if device == "cuda" else torch.bfloat16


class _Arrived(BaseException):
    """The operation has reached the device, with inputs of these types."""

    def __init__(self, types: list[torch.dtype]) -> None:
        super().__init__()
        self.types = types


class _Gate(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets casts through, and stops after the first operation that is none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.rpartition("::")[2]
        given = [t.dtype for t in tensors_in((args, kwargs)) if t.is_floating_point()]
        asked = func.namespace != "aten"  # `prim.device` and the like
        if name == "_to_copy" and given and kwargs.get("dtype") is not None:
            self.casts.append(kwargs["dtype"])
            return func(*args, **kwargs)
        if asked or not given or func.is_view:
            return func(*args, **kwargs)
        if self.casts:
            raise _Arrived(self.casts[:1])
        try:
            result = func(*args, **kwargs)
        except Exception:
            raise _Arrived(given) from None
        # `sum` is not given float32 but told to return it
        made = [t.dtype for t in tensors_in(result) if t.is_floating_point()]
        raise _Arrived(made or given)


def _ask(name: str, special: bool, device: str, refusals: dict[str, str]) -> str | None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    op = getattr(packet, overload or "default", None) if packet is not None else None
    if op is None:
        return None
    half = _half(device)
    whole = _types(op, device, [torch.float32], refusals)
    narrow = _types(op, device, [half], refusals)
    if name in refusals or op.name().removeprefix("aten::") in refusals:
        return "refused"
    if not whole or not narrow:
        return None
    if all(t is half for t in whole):
        return "half"
    if all(t is torch.float32 for t in narrow):
        return "float32"
    mixed = _types(op, device, [half, torch.float32], refusals)
    return "widest" if special and torch.float32 in mixed else "given"


def _types(
    op: Any, device: str, dtypes: list[torch.dtype], refusals: dict[str, str]
) -> list[torch.dtype]:
    """The types that its inputs have when they reach the device, with the first shape that it accepts."""
    for rank in (4, 2) if "attention" in op.name() else (2, 3, 4, 5, 1):
        try:
            args = _arguments(op._schema, rank, device, dtypes)
            with _Gate():
                op(*args)
        except _Arrived as arrived:
            return arrived.types
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            if "unsafe to autocast" in str(error):
                refusals[op.name().removeprefix("aten::")] = str(error).partition(".\n")[0]
                return []
    return []


def _arguments(schema: Any, rank: int, device: str, dtypes: list[torch.dtype]) -> list[Any]:
    """The plainest arguments that the signature allows, up to the first that may be left out."""
    args: list[Any] = []
    tensors = 0

    def tensor(name: str) -> Tensor:
        nonlocal tensors
        dtype = dtypes[min(tensors, len(dtypes) - 1)]
        if name in ("target", "targets", "indices", "index", "mask", "condition"):
            kind = torch.bool if name in ("mask", "condition") else torch.int64
            if name != "target" or "nll" in schema.name or "margin_loss" in schema.name:
                shape = (4,) * (rank if "index" in name or kind is torch.bool else max(rank - 1, 1))
                return torch.zeros(shape, dtype=kind, device=device)
        tensors += 1
        shape = (4,) if name in ("bias", "running_mean", "running_var") else (4,) * rank
        return torch.ones(shape, dtype=dtype, device=device)

    for argument in schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value() and not (argument.name == "weight" and kind == "Tensor"):
            break
        if argument.kwarg_only:
            break
        if kind == "Tensor":
            args.append(tensor(argument.name))
        elif kind.startswith("List[Optional[Tensor]]"):
            args.append([torch.zeros(4, dtype=torch.int64, device=device)])
        elif kind.startswith("List[Tensor]"):
            args.append([tensor(argument.name), tensor(argument.name)])
        elif kind.startswith("List[int]") or kind.startswith("List[SymInt]"):
            args.append([4] if "shape" in argument.name else [1] * max(rank - 2, 1))
        elif kind in ("int", "SymInt", "number", "Scalar"):
            args.append(1)
        elif kind == "float":
            args.append(1.0)
        elif kind == "bool":
            args.append(False)
        elif kind == "str":
            args.append("ij,jk->ik")
        elif kind.startswith("Optional"):
            args.append(
                tensor(argument.name) if "Tensor" in kind and "running" in argument.name else None
            )
        else:
            raise TypeError(kind)
    return args


def _wrapped(names: list[str]) -> list[str]:
    return textwrap.wrap(", ".join(names), 100, initial_indent="  ", subsequent_indent="  ")

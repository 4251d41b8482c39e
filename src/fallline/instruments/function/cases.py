"""The cases that a custom autograd Function has to pass, each with what to do where it does not."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fallline.engine import rng
from fallline.instruments.function.report import Case
from fallline.instruments.function.watched import (
    Witness,
    apply,
    apply_plainly,
    floats,
    moved,
    watched,
)

__all__ = ["CASES", "Check"]

_CLOSE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_ERRORS = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, IndexError)


class Check:
    """One Function with one set of inputs, in float64 the way gradcheck wants them."""

    def __init__(self, function: Any, inputs: Sequence[Any]) -> None:
        self.function = function
        self.inputs = moved(inputs, lambda x: x.double())
        self.names = [f"input {i}" for i in range(len(self.inputs))]
        self.writes = True
        witness = Witness()
        with contextlib.suppress(*_ERRORS):
            apply(watched(function, witness), self.inputs)
            self.writes = bool(witness.changed or witness.dirty)

    def apply(self, inputs: Sequence[Any]) -> Any:
        return apply(self.function, inputs, copies=self.writes)

    def outputs(self, inputs: Sequence[Any]) -> list[Tensor]:
        made = self.apply(inputs)
        return [x for x in (made if isinstance(made, tuple) else (made,)) if _differentiable(x)]

    def gradients(self, inputs: Sequence[Any], *, expanded: bool = False) -> list[Tensor | None]:
        """Of a fixed weighting of the outputs (or of their sum), with respect to every input that has one."""
        outputs = self.outputs(inputs)
        leaves = [inputs[i] for i in floats(inputs) if inputs[i].requires_grad]
        weights = [_expanded(o) if expanded else _weights(o) for o in outputs]
        return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _expanded(output: Tensor) -> Tensor:
    """Ones as `y.sum(-1)` sends them back: a stride of 0 along the last dimension."""
    narrow = (*output.shape[:-1], 1) if output.ndim else ()
    return torch.ones(narrow, dtype=output.dtype, device=output.device).expand(output.shape)


def _weights(output: Tensor) -> Tensor:
    count = torch.arange(1, output.numel() + 1, device=output.device, dtype=torch.float64)
    return (0.5 + torch.sin(count)).reshape(output.shape).to(output.dtype)


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:240]}" if text else type(error).__name__


# -- the cases -----------------------------------------------------------------------------------------------------


def runs(check: Check) -> Iterator[Case]:
    """forward and backward at all."""
    try:
        outputs = check.outputs(check.inputs)
        if not outputs:
            yield Case(
                "forward and backward", False, "no output requires a gradient",
                "return a floating-point tensor from forward, and do not mark every output non-differentiable",
            )  # fmt: skip
            return
        check.gradients(check.inputs)
    except _ERRORS as error:
        yield Case(
            "forward and backward", False, _short(error),
            "forward(ctx, *inputs) and backward(ctx, *output_gradients) are static methods; backward returns one gradient (or None) per input of forward",
        )  # fmt: skip
        return
    yield Case("forward and backward", True)


def shapes(check: Check) -> Iterator[Case]:
    """What backward returns, before autograd sums it into shape without a word."""
    witness = Witness()
    seen = Check(watched(check.function, witness), check.inputs)
    seen.gradients(seen.inputs)
    wrong = []
    for i, value in enumerate(check.inputs):
        made = witness.returned[i] if i < len(witness.returned) else None
        needs = isinstance(value, Tensor) and value.requires_grad
        if needs and made is None:
            wrong.append(
                f"{check.names[i]} requires a gradient and gets None: it would not be trained"
            )
        elif isinstance(made, Tensor) and isinstance(value, Tensor):
            if made.shape != value.shape:
                wrong.append(
                    f"the gradient of {check.names[i]} has shape {tuple(made.shape)}, the input {tuple(value.shape)}: "
                    "autograd sums it silently where the shapes can be broadcast"
                )
            elif made.dtype is not value.dtype:
                wrong.append(
                    f"the gradient of {check.names[i]} is {made.dtype}, the input {value.dtype}"
                )
    if wrong and _gradcheck(torch.autograd.gradcheck, check) is None:
        wrong.append("after that the numbers are right for these inputs")
    yield Case(
        "shape of the gradients", not wrong, "; ".join(wrong),
        "return every gradient in the shape of its input: gradient.sum_to_size(input.shape) after a broadcast",
    )  # fmt: skip


def gradcheck(check: Check) -> Iterator[Case]:
    """The gradient against finite differences."""
    error = _gradcheck(torch.autograd.gradcheck, check)
    if error is None:
        yield Case("gradcheck", True)
        return
    text = str(error)
    if "non-deterministic" in text or "not reentrant" in text:
        yield Case(
            "gradcheck", False, "backward gives different gradients when it is run twice",
            "do not change saved tensors in backward, and draw random numbers in forward only",
        )  # fmt: skip
        return
    yield Case(
        "gradcheck", False, f"the gradient is not that of the forward pass{_ratios(check)}",
        "compare the formula in backward with the derivative of forward; meant so (a straight-through estimator)? skip=('gradcheck', 'gradgradcheck')",
    )  # fmt: skip


def _gradcheck(tool: Callable[..., Any], check: Check) -> BaseException | None:
    kept = rng.capture()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tool(lambda *inputs: check.apply(inputs), tuple(check.inputs))
    except _ERRORS as error:
        return error
    finally:
        rng.restore(kept)
    return None


def _ratios(check: Check) -> str:
    """Along one direction for each input: the gradient over the measured slope, so that a factor or a sign is seen."""
    said = []
    gradients = check.gradients(check.inputs)
    for place, gradient in zip(floats(check.inputs), gradients, strict=True):
        x = check.inputs[place].detach()
        direction = _weights(x)
        slopes = []
        for sign in (1, -1):
            inputs = list(check.inputs)
            inputs[place] = (x + sign * 1e-6 * direction).requires_grad_()
            outputs = check.outputs(inputs)
            slopes.append(sum(float((o.detach() * _weights(o)).sum()) for o in outputs))
        slope = (slopes[0] - slopes[1]) / 2e-6
        given = float((gradient * direction).sum()) if gradient is not None else 0.0
        if abs(given - slope) > 1e-4 * max(abs(slope), abs(given), 1e-8):
            factor = f", {given / slope:.3g} times it" if slope else ""
            said.append(f"{check.names[place]}: {given:.4g} where the slope is {slope:.4g}{factor}")
    return f" ({'; '.join(said)})" if said else ""


def gradgradcheck(check: Check) -> Iterator[Case]:
    """The gradient of the gradient."""
    error = _gradcheck(torch.autograd.gradgradcheck, check)
    if error is None:
        yield Case("gradgradcheck", True)
    elif _refuses(check):
        yield Case(
            "gradgradcheck",
            None,
            "declared @once_differentiable: a second derivative raises, which is honest",
        )
    else:
        yield Case(
            "gradgradcheck", False, "the second derivative is wrong or missing, silently",
            "write backward with differentiable torch operations on ctx.saved_tensors, or declare it @torch.autograd.function.once_differentiable",
        )  # fmt: skip


def _refuses(check: Check) -> bool:
    """Whether a second backward raises as @once_differentiable promises; gradgradcheck takes it for a derivative of zero."""
    inputs = moved(check.inputs, torch.clone)
    outputs = check.outputs(inputs)
    weights = [_weights(o).requires_grad_() for o in outputs]
    leaves = [inputs[i] for i in floats(inputs)]
    try:
        made = torch.autograd.grad(outputs, leaves, weights, create_graph=True, allow_unused=True)
        held = [g.sum() for g in made if g is not None and g.requires_grad]
        torch.autograd.backward(held)
    except _ERRORS as error:
        return "once_differentiable" in str(error)
    return False


def one_at_a_time(check: Check) -> Iterator[Case]:
    """Only one input requires a gradient, as when the layer before it is frozen."""
    places = floats(check.inputs)
    if len(places) < 2:
        return
    wanted = check.gradients(check.inputs)
    for order, place in enumerate(places):
        inputs = [
            x.detach() if i in places and i != place else x for i, x in enumerate(check.inputs)
        ]
        name = f"only {check.names[place]} requires a gradient"
        try:
            (found,) = check.gradients(inputs)
        except _ERRORS as error:
            yield Case(
                name,
                False,
                _short(error),
                "look at ctx.needs_input_grad, and return None for the others",
            )
            continue
        expected = wanted[order]
        same = (
            found is None
            if expected is None
            else found is not None and torch.allclose(found, expected)
        )
        yield Case(name, same, "" if same else "its gradient differs from the one with all inputs", "do not let ctx.needs_input_grad change what the others get")  # fmt: skip


def dtypes(check: Check) -> Iterator[Case]:
    """float32, float16 and bfloat16 inputs."""
    wanted = check.gradients(check.inputs)
    for dtype, close in _CLOSE.items():
        name = str(dtype).removeprefix("torch.")
        yield _compared(
            check, name, moved(check.inputs, _to(dtype)), wanted, close,
            "make constants with torch.zeros_like and the like, or cast to a wider type inside and back to input.dtype at the end",
            dtype=dtype,
        )  # fmt: skip


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype)


def _compared(
    check: Check,
    name: str,
    inputs: list[Any],
    wanted: list[Tensor | None],
    close: float,
    fix: str,
    *,
    dtype: torch.dtype | None = None,
    expanded: bool = False,
    around: Any = None,
) -> Case:
    found: list[Tensor | None]
    try:
        if around is not None:
            with around:
                outputs = check.outputs(inputs)
            leaves = [inputs[i] for i in floats(inputs)]
            weights = [_weights(o) for o in outputs]
            found = list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))
        else:
            outputs = check.outputs(inputs)
            found = check.gradients(inputs, expanded=expanded)
    except _ERRORS as error:
        if "not implemented for" in str(error):
            return Case(name, None, f"this device cannot ({_short(error)})")
        return Case(name, False, _short(error), fix)
    if dtype is not None and any(o.dtype is not dtype for o in outputs):
        return Case(name, False, f"the output is {outputs[0].dtype}", fix)
    for place, gradient, right in zip(floats(inputs), found, wanted, strict=True):
        if right is None and gradient is None:
            continue
        if gradient is None or right is None:
            return Case(name, False, f"{check.names[place]} has a gradient in one case only", fix)
        if gradient.dtype is not inputs[place].dtype:
            return Case(
                name, False, f"the gradient of {check.names[place]} is {gradient.dtype}", fix
            )
        off = float(
            (gradient.double().cpu() - right.cpu()).norm() / right.cpu().norm().clamp_min(1e-12)
        )
        if not off <= close:
            return Case(
                name,
                False,
                f"the gradient of {check.names[place]} is off by {off:.2g} (float64's is right)",
                fix,
            )
    return Case(name, True)


def non_contiguous(check: Check) -> Iterator[Case]:
    """Inputs, and gradients that come in, with other strides than usual."""
    wanted = check.gradients(check.inputs)
    yield _compared(
        check, "non-contiguous inputs", moved(check.inputs, _spread), wanted, 1e-9,
        "use .reshape instead of .view, and .contiguous() before data_ptr() or numpy",
    )  # fmt: skip
    contiguous = _sums(check)
    yield _compared(
        check, "expanded gradient (from sum())", moved(check.inputs, torch.clone), contiguous, 1e-9,
        "the gradient that comes in can have strides of 0: .reshape instead of .view, and never write to it in place", expanded=True,
    )  # fmt: skip


def _spread(x: Tensor) -> Tensor:
    """The same numbers in another order in memory, or with gaps in between."""
    if x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    wide = torch.zeros(*x.shape, 2, dtype=x.dtype, device=x.device)
    wide[..., 0] = x
    return wide[..., 0]


def _sums(check: Check) -> list[Tensor | None]:
    inputs = moved(check.inputs, torch.clone)
    outputs = check.outputs(inputs)
    leaves = [inputs[i] for i in floats(inputs)]
    ones = [torch.ones_like(o, memory_format=torch.contiguous_format) for o in outputs]
    return list(torch.autograd.grad(outputs, leaves, ones, allow_unused=True))


def autocast(check: Check) -> Iterator[Case]:
    """Inside autocast, with float32 inputs, and with one that an earlier layer has made half."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = check.gradients(check.inputs)
    fix = (
        f"decorate forward with torch.amp.custom_fwd(device_type={device!r}, cast_inputs=torch.float32) and backward with "
        f"torch.amp.custom_bwd(device_type={device!r})"
    )
    for dtype in (torch.bfloat16, torch.float16) if device == "cuda" else (torch.bfloat16,):
        name = str(dtype).removeprefix("torch.")
        around = torch.autocast(device, dtype=dtype)
        plain = moved(_at(check.inputs, device), lambda x: x.to(torch.float32))
        yield _compared(check, f"autocast {name}", plain, wanted, _CLOSE[torch.bfloat16], fix, around=around)  # fmt: skip
        places = floats(check.inputs)
        if len(places) > 1:
            mixed = [
                x.detach().to(dtype).requires_grad_() if i == places[0] else x
                for i, x in enumerate(plain)
            ]
            yield _compared(check, f"autocast {name}, {check.names[places[0]]} from a half layer", mixed, wanted, _CLOSE[torch.bfloat16], fix, around=around)  # fmt: skip


def device(check: Check) -> Iterator[Case]:
    """The GPU, or without one tensors that claim to be there."""
    fix = "make tensors on the device of the input: torch.zeros(n, device=x.device) or torch.zeros_like(x)"
    if torch.cuda.is_available():
        wanted = check.gradients(check.inputs)
        there = moved(_at(check.inputs, "cuda"), torch.clone)
        yield _compared(check, "cuda", there, wanted, 1e-6, fix)
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    name = "cuda (no GPU here: tensors without memory)"
    try:
        with FakeTensorMode():
            inputs = [
                torch.empty(x.shape, dtype=x.dtype, device="cuda") if isinstance(x, Tensor) else x
                for x in check.inputs
            ]
            apply_plainly(check.function, inputs)
    except _ERRORS as error:
        text = str(error)
        if "device" in text and "cpu" in text:
            yield Case(name, False, _short(error), fix)
        else:
            yield Case(name, None, f"cannot be asked without a GPU ({_short(error)})")
        return
    yield Case(name, True)


def _at(inputs: Sequence[Any], device: str) -> list[Any]:
    return [x.detach().to(device) if isinstance(x, Tensor) else x for x in inputs]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def in_place(check: Check) -> Iterator[Case]:
    """Inputs that forward writes to."""
    witness = Witness()
    apply(watched(check.function, witness), check.inputs)
    silent = [check.names[i] for i in witness.changed if i not in witness.dirty]
    yield Case(
        "in-place changes", not silent,
        f"forward changes {', '.join(silent)} in place and does not say so: autograd continues with what it saved before" if silent else "",
        "ctx.mark_dirty(x) and return x itself; or work on x.clone()",
    )  # fmt: skip


def on_ctx(check: Check) -> Iterator[Case]:
    """Tensors that are plain attributes of ctx."""
    witness = Witness()
    function = watched(check.function, witness)
    outputs = _tuple(apply(function, check.inputs))
    names = sorted(witness.on_ctx)
    if not names:
        yield Case("tensors on ctx", True)
        return
    memory = [weakref.ref(t) for t in witness.on_ctx.values()]
    alone = {o.untyped_storage().data_ptr() for o in outputs if isinstance(o, Tensor)}
    is_output = [n for n, t in witness.on_ctx.items() if t.untyped_storage().data_ptr() in alone]
    witness.on_ctx, outputs = {}, ()
    gc.collect()
    leaked = sum(ref() is not None for ref in memory)
    cycle = ""
    if is_output:
        cycle = f"; {', '.join(is_output)} is the output itself, so the graph holds itself"
    still = f"; {leaked} of them stay in memory after the graph is gone (seen)" if leaked else ""
    yield Case(
        "tensors on ctx", False, f"ctx.{', ctx.'.join(names)} {'is a tensor' if len(names) == 1 else 'are tensors'} outside save_for_backward{cycle}{still}",
        "ctx.save_for_backward(...): it breaks the cycle, and notices when the tensor is changed before backward",
    )  # fmt: skip


CASES: dict[str, Callable[[Check], Iterator[Case]]] = {
    "forward and backward": runs,
    "shapes": shapes,
    "gradcheck": gradcheck,
    "gradgradcheck": gradgradcheck,
    "one at a time": one_at_a_time,
    "dtypes": dtypes,
    "non-contiguous": non_contiguous,
    "autocast": autocast,
    "device": device,
    "in-place": in_place,
    "ctx": on_ctx,
}

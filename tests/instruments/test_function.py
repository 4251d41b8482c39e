"""`fallline.check_function`: each planted mistake fails its own case, and a right Function passes them all."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import fallline
from fallline.errors import UsageError


class Right(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


class RightInParts(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0].cos()


class RightInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * 3


class Third(Function):
    """backward is a third of what it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0] ** 2


class TooWide(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient, gradient


class NoSecond(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0].detach() * gradient


class Once(NoSecond):
    backward = staticmethod(once_differentiable(NoSecond.backward))


class Views(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1) * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return (gradient * 2).reshape(4, 3)


class ViewsGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient.view(-1).view(4, 3) * 2


class Wide(Function):
    """Makes a float64 constant: every other type comes out wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.full((1,), 2.0, dtype=torch.float64, device=x.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * 2


class Products(Function):
    """A matrix product without custom_fwd: mixed types do not go together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return gradient @ w.T, x.T @ gradient


class OnTheCpu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.zeros(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient


class Writes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * 2


class Keeps(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.result = x.exp()
        return ctx.result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.result


class Forgets(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.saved_tensors[1], None


class Picky(Right):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        if x.shape != (7, 9):
            raise ValueError("7x9, please")
        return Right.forward(ctx, x, w)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    source = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=source) for s in shapes]


@pytest.mark.parametrize("function", [Right, RightInParts, RightInPlace, Once])
def test_a_right_function_passes(function: Any) -> None:
    torch.set_num_threads(1)
    report = fallline.check_function(function)
    assert report.passed and bool(report), report.text()
    assert len(report.cases) >= 12


@pytest.mark.parametrize(
    ("function", "shapes", "case", "said"),
    [
        (Third, [(4, 3)], "gradcheck", "0.333 times"),
        (TooWide, [(4, 3), (3,)], "shape of the gradients", "(4, 3), the input (3,)"),
        (Forgets, [(4, 3), (4, 3)], "shape of the gradients", "gets None"),
        (NoSecond, [(4, 3)], "gradgradcheck", "silently"),
        (Views, [(4, 3)], "non-contiguous inputs", "view"),
        (ViewsGradient, [(4, 3)], "expanded gradient (from sum())", "view"),
        (Wide, [(4, 3)], "float32", "float64"),
        (Products, [(4, 3), (3, 5)], "autocast bfloat16, input 0 from a half layer", "dtype"),
        (Writes, [(4, 3)], "in-place changes", "input 0"),
        (Keeps, [(4, 3)], "tensors on ctx", "the output itself"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_mistake_fails_its_case_with_advice(
    function: Any, shapes: list[tuple[int, ...]], case: str, said: str
) -> None:
    torch.set_num_threads(1)
    report = fallline.check_function(function, *tensors(*shapes))
    failed = {c.name: c for c in report.failures}
    assert case in failed, report.text()
    assert said in failed[case].says and failed[case].fix
    assert f"FAIL {case}" in report.text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is asked itself")
def test_a_tensor_made_on_the_cpu_is_seen_without_a_gpu() -> None:
    failed = {c.name: c for c in fallline.check_function(OnTheCpu, *tensors((4, 3))).failures}
    (case,) = (c for n, c in failed.items() if n.startswith("cuda"))
    assert "device" in case.says and "x.device" in case.fix


def test_inputs_gradients_and_randomness_are_untouched() -> None:
    x, w = tensors((4, 3), (4, 3))
    x.requires_grad_()
    x.grad = torch.ones(4, 3)
    before, state = x.detach().clone(), torch.get_rng_state()
    fallline.check_function(Writes, x)
    fallline.check_function(Right, x, w)
    assert torch.equal(x.detach(), before) and torch.equal(x.grad, torch.ones(4, 3))
    assert x._version == 0 and torch.equal(torch.get_rng_state(), state)


def test_skipping_and_wrong_usage() -> None:
    report = fallline.check_function(Third, *tensors((4, 3)), skip=["gradcheck", "gradgradcheck"])
    assert report.passed
    with pytest.raises(UsageError, match="no case"):
        fallline.check_function(Third, skip=["gradients"])
    with pytest.raises(UsageError, match=r"torch\.autograd\.Function"):
        fallline.check_function(torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no inputs could be guessed"):
        fallline.check_function(Picky)
    with pytest.raises(UsageError, match="floating-point"):
        fallline.check_function(Right, torch.ones(2, dtype=torch.long), 3)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        import torch

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, gradient):
                return gradient * (ctx.factor + 1), None

        inputs = (torch.ones(2, 2), 2)
        """)
    )

    def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fallline", "measure", "function", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    ran = measure("--output-format", "json", "mine:Double", "--inputs", "mine:inputs")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    (case,) = (c for c in found["cases"] if c["case"] == "gradcheck")
    assert case["passed"] is False and "1.5 times" in case["says"]
    ran = measure("mine:Nothing")
    assert ran.returncode == 2 and "has no Nothing" in ran.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_asked_itself() -> None:
    right = fallline.check_function(Right)
    assert right.passed and "cuda" in {c.name for c in right.cases}
    assert "cuda" in {c.name for c in fallline.check_function(OnTheCpu, *tensors((4, 3))).failures}

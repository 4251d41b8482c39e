"""FL903: an autograd Function whose methods are not static."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "FL903",
    claim="Non-static methods work only through the class: an instance that is called raises, and a forward called on an instance "
    "gets that instance as ctx.",
)
def function_not_static() -> Measured:
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch also warns that instances are deprecated
        wrong = {
            "error of Double.apply(x)": error_of(lambda: _Double.apply(x)),
            "error of Double()(x)": error_of(lambda: _Double()(x)),
            "error of forward on an instance": error_of(
                lambda: _instance(_Double).forward(_Context(), x)
            ),
        }
        right = {
            "error of Double.apply(x)": error_of(lambda: _DoubleStatic.apply(x)),
            "error of forward on an instance": error_of(
                lambda: _instance(_DoubleStatic).forward(_Context(), x)
            ),
        }
        said = _message(lambda: _Double()(x))
    failing = sum(error != "none" for error in wrong.values())
    return Measured(
        sides={"wrong": wrong, "right": right},
        conclusion=f"without @staticmethod {failing} of {len(wrong)} ways to call the function raise (an instance that is called "
        f"{wrong['error of Double()(x)']}, forward on an instance {wrong['error of forward on an instance']}); with it neither apply nor "
        "forward on an instance does",
        holds={
            "through the class it happens to work": wrong["error of Double.apply(x)"] == "none",
            "a called instance raises": "Legacy autograd function with non-static forward" in said,
            "forward on an instance gets the instance as ctx": wrong[
                "error of forward on an instance"
            ]
            == "TypeError",
            "static methods work either way": set(right.values()) == {"none"},
        },
    )


class _Context:
    """Stands for the ctx of another Function that calls this forward."""


class _Double(Function):
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


class _DoubleStatic(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def _instance(function: type[Function]) -> Any:
    return function()


def _message(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""

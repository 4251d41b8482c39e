"""FL802: a module that assigns layers before nn.Module knows where to put them."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL802",
    claim="Before super().__init__() has run, assigning a layer or a parameter raises AttributeError; afterwards it is registered.",
)
def super_init_missing() -> Measured:
    late, never, parameter = _build(_Late), _build(_Never), _build(_ParameterFirst)
    right = _build(_First)
    return Measured(
        sides={
            "wrong": {"outcome": late},
            "right": {"outcome": right},
            "super().__init__() never called": {"outcome": never},
            "a parameter before it": {"outcome": parameter},
        },
        conclusion=f'a layer assigned too early raises "{late}"; with super().__init__() first the module has {right}',
        holds={
            "a layer assigned too early raises": late
            == never
            == "AttributeError: cannot assign module before Module.__init__() call",
            "so does a parameter": parameter
            == "AttributeError: cannot assign parameters before Module.__init__() call",
            "called first, everything is registered": right == "2 parameters",
        },
    )


class _Late(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)
        super().__init__()


class _Never(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)


class _ParameterFirst(nn.Module):
    def __init__(self) -> None:
        self.scale = nn.Parameter(torch.ones(2))
        super().__init__()


class _First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def _build(module: type[nn.Module]) -> str:
    try:
        return f"{len(list(module().parameters()))} parameters"
    except AttributeError as error:
        return f"AttributeError: {error}"

"""Layers in plain lists that are known by an annotation, or by the name of their maker and by being called."""

from __future__ import annotations

import pytest

from fallline.finding import Severity
from fallline.verdict.reading import read_text

ANNOTATED = """\
from typing import List, Optional

from torch import nn

from .makers import make


class Merge(nn.Module):
    def __init__(self, layers=None):
        super().__init__()
        self.parts: Optional[List[nn.Module]] = None
        if layers is not None:
            self.parts = []
            for layer in layers:
                self.parts.append(make(layer))

    def forward(self, x):
        return [part(x) for part in self.parts]
"""
NAMED = """\
from torch import nn

from .makers import get_block


class Stack(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.blocks = [get_block(size) for size in sizes]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


def found(source: str) -> list[tuple[int, Severity]]:
    return [(f.at.line, f.severity) for f in read_text(source) if f.code == "FL801"]


def test_an_annotation_says_what_a_list_holds() -> None:
    assert found(ANNOTATED) == [(13, Severity.ERROR)]


def test_a_maker_named_after_layers_is_presumed_to_make_them() -> None:
    assert found(NAMED) == [(9, Severity.INFO)]


@pytest.mark.parametrize(
    "source",
    [
        ANNOTATED.replace("nn.Module]]", "str]]"),
        ANNOTATED.replace("self.parts = []", "self.parts = nn.ModuleList()"),
        NAMED.replace(
            "[get_block(size) for size in sizes]",
            "nn.ModuleList([get_block(size) for size in sizes])",
        ),
        NAMED.replace("get_block", "get_scale"),
        # only looked up, never called
        NAMED.replace("x = block(x)", "x = x + block.scale"),
    ],
)
def test_other_lists_are_left_alone(source: str) -> None:
    assert found(source) == []

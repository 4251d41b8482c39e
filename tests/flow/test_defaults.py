"""What an argument is where a call does not say."""

from __future__ import annotations

import ast

import pytest

from fallline.flow.values import default_of


@pytest.mark.parametrize(
    ("taken", "argument", "default"),
    [
        ("x, rate=0.5", "rate", "0.5"),
        ("x, rate=0.5", "x", None),
        ("x, /, rate=0.5, *, steps=3", "steps", "3"),
        ("x, *rest, steps", "steps", None),
        ("x=1, *rest, **options", "rest", None),
        ("x=1, **options", "options", None),
    ],
)
def test_default_of(taken: str, argument: str, default: str | None) -> None:
    function = ast.parse(f"lambda {taken}: x", mode="eval").body
    assert isinstance(function, ast.Lambda)
    given = next(a for a in ast.walk(function.args) if isinstance(a, ast.arg) and a.arg == argument)
    found = default_of(function, given)
    assert (None if found is None else ast.unparse(found)) == default

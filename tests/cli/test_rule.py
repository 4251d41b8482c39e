"""`fallline rule`: one rule's document in three formats."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fallline.rules import all_rules


def test_text(fallline: Callable) -> None:
    ran = fallline("rule", "FL803")
    assert ran.status == 0
    for part in ("FL803 forward-called", "Why is this bad?", "Wrong", "Use instead", "Fix safety"):
        assert part in ran.out


def test_names_and_any_case(fallline: Callable) -> None:
    assert fallline("rule", "fl803").out == fallline("rule", "forward-called").out


def test_markdown_is_the_page(fallline: Callable) -> None:
    ran = fallline("rule", "FL803", "--output-format", "markdown")
    assert ran.out.startswith("# FL803 forward-called\n")
    assert "```python" in ran.out


def test_json(fallline: Callable) -> None:
    rule = json.loads(fallline("rule", "FL803", "--output-format", "json").out)
    assert rule["code"] == "FL803" and rule["fixable"] is True and rule["seen_by"] == "reader"
    assert rule["wrong"] and rule["right"]


def test_all_rules(fallline: Callable) -> None:
    codes = [rule.code for rule in all_rules()]
    table = fallline("rule", "--all").out
    assert [line.split()[0] for line in table.splitlines() if line.startswith("  FL")] == codes
    assert [
        rule["code"]
        for rule in json.loads(fallline("rule", "--all", "--output-format", "json").out)
    ] == codes


@pytest.mark.parametrize("arguments", [["FL999"], []])
def test_no_such_rule(fallline: Callable, arguments: list[str]) -> None:
    ran = fallline("rule", *arguments)
    assert ran.status == 2 and "fallline rule" in ran.err


def test_a_near_miss_is_helped(fallline: Callable) -> None:
    assert "forward-called" in fallline("rule", "forward-caled").err


def test_a_part_of_a_name_is_enough_for_a_hint(fallline: Callable) -> None:
    assert "clip-after-step" in fallline("rule", "clip").err

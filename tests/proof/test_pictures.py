"""The small plot in the terminal, and the figure on the page."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from fallline.proof.figure import figure
from fallline.proof.picture import picture
from fallline.proof.record import Outcome, parse, written
from fallline.show.picture import Bars, Lines
from fallline.show.plot import plot
from fallline.show.terminal import Paint

PLAIN = Paint(False)


def outcome(**given: object) -> Outcome:
    return Outcome("FL104", "accumulation-unscaled", "gradients", "A claim.", verdict="proved",
                   conclusion="4 is <more> than 1", **given)  # type: ignore[arg-type]  # fmt: skip


CURVES = outcome(
    curves={"wrong": [1.0, 10.0, math.nan, 1e6], "right": [1.0, 0.5, 0.2, 0.1]},
    axes=("update", "loss"),
    sides={"wrong": {"loss": 1e6}, "right": {"loss": 0.1}},
)
BARS = outcome(sides={"wrong": {"step": 4.0, "kind": "SGD"}, "right": {"step": 1.0}})
WORDS = outcome(sides={"wrong": {"raises": "RuntimeError"}, "right": {"raises": "none"}})


def test_curves_are_lines_and_what_is_not_finite_is_left_out() -> None:
    drawn = picture(CURVES)
    assert isinstance(drawn, Lines) and drawn.y.log
    assert len(drawn.curves["wrong"]) == 3 and len(drawn.curves["right"]) == 4


def test_steps_that_multiply_get_an_axis_that_does() -> None:
    grown = outcome(curves={"a": [1.0, 2.0, 3.0]}, positions=[1, 10, 100])
    drawn = picture(grown)
    assert isinstance(drawn, Lines) and drawn.x.log
    assert drawn.at("a", 0.5) == pytest.approx(drawn.y.place(2.0))


def test_without_curves_the_quantity_that_most_sides_have_is_bars() -> None:
    drawn = picture(BARS)
    assert isinstance(drawn, Bars)
    assert (drawn.quantity, drawn.values) == ("step", {"wrong": 4.0, "right": 1.0})
    assert picture(WORDS) is None


@pytest.mark.parametrize("width", [40, 60, 96])
@pytest.mark.parametrize("given", [CURVES, BARS], ids=["lines", "bars"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_plot_keeps_to_its_width(given: Outcome, width: int, ascii_only: bool) -> None:
    drawn = picture(given)
    assert drawn is not None
    lines = plot(drawn, width, PLAIN, plain=ascii_only)
    assert max(map(len, lines)) <= width
    assert not ascii_only or all(line.isascii() for line in lines)


def test_each_curve_has_its_own_mark_so_that_colour_is_not_needed() -> None:
    drawn = picture(CURVES)
    assert drawn is not None
    text = "\n".join(plot(drawn, 60, PLAIN))
    assert "● wrong" in text and "○ right" in text and text.count("●") > 10
    assert "\x1b[31m" in "\n".join(plot(drawn, 60, Paint(True)))


def test_curves_that_meet_are_both_seen() -> None:
    same = picture(outcome(curves={"a": [1.0, 2.0], "b": [1.0, 2.0]}))
    assert same is not None
    rows = "\n".join(plot(same, 60, PLAIN)[:-1])
    assert "●" in rows and "○" in rows


@pytest.mark.parametrize("given", [CURVES, BARS, WORDS], ids=["lines", "bars", "words"])
def test_a_figure_is_well_formed_and_the_same_every_time(given: Outcome) -> None:
    svg = figure(given)
    assert svg == figure(given)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and "<more>" in str(root.get("aria-label"))
    assert "prefers-color-scheme:dark" in svg and "NaN" not in svg and "nan" not in svg
    left, top, width, height = map(float, str(root.get("viewBox")).split())
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert left <= float(str(text.get("x"))) <= width
        assert top <= float(str(text.get("y"))) <= height


def test_a_record_survives_being_written() -> None:
    text = written([CURVES, outcome(sides={"wrong": {"loss": math.inf, "mean": math.nan}})])
    assert "NaN" in text and "Infinity" not in text and "[1.0, 10.0, null, 1000000.0]" in text
    first, second = parse(text, "it")
    assert first.curves["wrong"][2] is None
    assert second.sides["wrong"] == {"loss": "Inf", "mean": "NaN"}
    assert written([first, second]) == text

"""The notation that the rule tests are written in."""

from fallline.events import Backward, Clip, windows
from traces import line_of, trace


def test_repetition_and_facts() -> None:
    made = trace("Z [F B(divided, divisor=4)]*4 C(threshold=inf) S")
    assert [type(e) for e in made.events].count(Backward) == 4
    assert len(windows(made)[0].micro) == 4
    assert made.updates[0].backwards[0].divisor == 4
    assert made.of(Clip).first.threshold == float("inf")


def test_the_same_token_is_the_same_line() -> None:
    made = trace("Z B1(divided) B2 S Z B1 B2 S")
    assert line_of(made, "B1") == 2
    assert [e.at.line for e in made.of(Backward)] == [2, 3, 2, 3]


def test_optimizers_are_told_apart() -> None:
    made = trace(
        "B(parameters=D) S:d B(parameters=G+D) S:g",
        {"d": {"parameters": frozenset("D")}, "g": {"parameters": frozenset("G")}},
    )
    assert [len(u.backwards) for u in made.updates_of("g")] == [1]

"""The notation that the rule tests are written in."""

from fallline.events import Kind
from traces import line_of, trace


def test_repetition_and_facts() -> None:
    made = trace("Z [F B(divided, divisor=4)]*4 C(threshold=inf) S")
    assert [e.kind for e in made.events].count(Kind.BACKWARD) == 4
    assert made.updates[0].accumulates
    assert made.updates[0].backwards[0].fact("divisor") == 4
    assert made.all(Kind.CLIP)[0].fact("threshold") == float("inf")


def test_the_same_token_is_the_same_line() -> None:
    made = trace("Z B1(divided) B2 S Z B1 B2 S")
    assert line_of(made, "B1") == 2
    assert [e.at.line for e in made.all(Kind.BACKWARD)] == [2, 3, 2, 3]


def test_optimizers_are_told_apart() -> None:
    made = trace(
        "B(parameters=D) S:d B(parameters=G+D) S:g",
        {"d": {"parameters": frozenset("D")}, "g": {"parameters": frozenset("G")}},
    )
    assert [len(u.backwards) for u in made.updates_of("g")] == [1]

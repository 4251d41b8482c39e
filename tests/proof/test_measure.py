"""One experiment that fails, dies or hangs never takes down the others, and is told apart from a false claim."""

from __future__ import annotations

import multiprocessing

import pytest

torch = pytest.importorskip("torch")

from fallline.proof import experiment  # noqa: E402
from fallline.proof.measure import measure  # noqa: E402


def test_each_failure_is_told_and_stops_nobody(false_claims: list[str]) -> None:
    heard = []
    names = [n for n in false_claims if n != "needs-a-device"]
    outcomes = {o.of: o for o in measure(names, jobs=5, limit=10, done=heard.append)}
    assert list(outcomes) == names
    assert {o.of for o in heard} == set(names)
    assert outcomes["sum-is-exact"].verdict == "refuted"
    assert outcomes["sum-is-exact"].holds == {"there is a sum": True, "the sum is 4000": False}
    assert "nothing was measured" in outcomes["raises"].problem
    assert "about to die" in outcomes["dies"].problem
    assert "longer than it may" in outcomes["never-ends"].problem
    assert outcomes["needs-a-package"].verdict == "unavailable"
    assert "a_package_that_nobody_has" in outcomes["needs-a-package"].problem
    assert {o.verdict for n, o in outcomes.items() if n in {"raises", "dies", "never-ends"}} == {
        "failed"
    }
    assert not multiprocessing.active_children()


def test_the_same_seed_gives_the_same_numbers() -> None:
    (first,), (second,) = measure(["FL104"]), measure(["FL104"])
    assert (first.sides, first.curves, first.conclusion) == (
        second.sides,
        second.curves,
        second.conclusion,
    )


def test_moved_seeds_give_other_numbers_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the experiment's own process and on its ranks, for every source of random numbers; and the same ones each time."""
    monkeypatch.setattr(
        experiment, "where", lambda: {"draws": "proof_fixtures.numerics.drawn_numbers"}
    )
    (usual,), (moved,), (again,) = (measure(["draws"], seeds_by=by) for by in (0, 1000, 1000))
    assert {o.verdict for o in (usual, moved, again)} == {"proved"}, moved.problem
    assert moved.sides == again.sides
    for drawn in usual.sides:
        assert usual.sides[drawn] != moved.sides[drawn], f"{drawn} is as before"

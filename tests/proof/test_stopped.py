"""`fallline prove --all` that is stopped keeps what it has measured, and another run continues with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fallline.proof import experiment, measure, record
from fallline.proof.record import Outcome

Fallline = Callable[..., Any]
UNFINISHED = "docs/evidence.unfinished.json"


def outcome(of: str, verdict: str = "proved") -> Outcome:
    return Outcome(
        of, of, "numerics", "A claim.", verdict=verdict, conclusion=f"{of} is 1",
        sides={"a": {"x": 1.0}}, holds={"so": True}, machine="CPU", torch="2",
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which experiments were measured, call by call. One that is called `stop` is a Ctrl-C, the first time."""
    calls: list[list[str]] = []

    def measured(
        names: list[str], *, done: Callable[[Outcome], None], **_: object
    ) -> list[Outcome]:
        calls.append(list(names))
        found = []
        for name in names:
            if name == "stop" and len(calls) == 1:
                raise KeyboardInterrupt
            found.append(
                outcome(name, "failed" if name == "fails" and len(calls) == 1 else "proved")
            )
            done(found[-1])
        return found

    monkeypatch.setattr(measure, "measure", measured)
    names = ["first", "fails", "second", "stop", "last"]
    monkeypatch.setattr(experiment, "where", lambda: dict.fromkeys(names, "a.b.numerics.c"))
    return calls


def test_what_is_measured_is_kept_and_the_next_run_goes_on(
    fallline: Fallline, project: Path, asked: list[list[str]]
) -> None:
    ran = fallline("prove", "--all", "--out", "docs")
    assert ran.status == 130
    assert f"measured 2 of 5 experiments, kept in {UNFINISHED}" in ran.err
    assert "--continue" in ran.err and "Traceback" not in ran.err
    assert not (project / "docs/evidence.json").exists(), "half a record is no record"
    assert [o.of for o in record.read(project / UNFINISHED)] == ["first", "second"]

    ran = fallline("prove", "--all", "--continue", "--out", "docs")
    assert ran.status == 0, ran.err
    assert asked[1] == ["fails", "stop", "last"], "what failed is tried again"
    assert "5 experiments: 5 proved" in ran.out
    there = record.read(project / "docs/evidence.json")
    assert [o.of for o in there] == ["fails", "first", "last", "second", "stop"]
    assert not (project / UNFINISHED).exists()


def test_without_asking_for_it_everything_is_measured_again(
    fallline: Fallline, project: Path, asked: list[list[str]]
) -> None:
    assert fallline("prove", "--all", "--out", "docs").status == 130
    assert fallline("prove", "--all", "--out", "docs").status == 0
    assert asked[1] == ["first", "fails", "second", "stop", "last"]
    assert not (project / UNFINISHED).exists()


def test_other_seeds_are_no_record(
    fallline: Fallline, project: Path, asked: list[list[str]]
) -> None:
    asked.append([])  # nobody stops it
    ran = fallline("prove", "--all", "--seed", "1000", "--output-format", "json")
    assert ran.status == 0 and len(json.loads(ran.out)) == 5
    assert not (project / "docs").exists()

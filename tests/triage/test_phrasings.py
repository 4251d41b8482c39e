"""Questions in people's own words reach the right specialist; what is not about training reaches nobody.

phrasings.toml and phrasings_last.toml were held out while recognition was made; it is tuned on phrasings_dev.toml and
phrasings_tired.toml. phrasings_tired_fresh.toml was written after it had been tuned on the latter. The night sets came later: the first two were
measured untouched, then tuned on; phrasings_last_night.toml was written last and nothing was changed for it. The short sets, too, were measured, then tuned on.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest

from fallline.report.answer import chapter
from fallline.specialists import SPECIALISTS
from fallline.triage import answer as answered
from fallline.triage import playbooks
from fallline.triage.answer import SURE
from fallline.triage.words import pointers, scope, tokens

EVALS = Path(__file__).parents[2] / "evals"
answer = cache(answered)  # several tests ask the same questions


def questions(name: str) -> tuple[list[tuple[str, list[str]]], list[str]]:
    raw = tomllib.loads((EVALS / name).read_text(encoding="utf-8"))
    ours = [(text, [who]) for who, texts in raw["first"].items() for text in texts]
    ours += [(row["text"], row["first"]) for row in raw.get("crossing", [])]
    return ours, raw["none"]["phrases"]


def first(text: str) -> str | None:
    routes = answer(text).routes
    return routes[0][0] if routes and routes[0][1] >= SURE else None


@pytest.mark.parametrize("name", ["phrasings.toml", "phrasings_last.toml", "phrasings_dev.toml"])
def test_nine_in_ten_questions_reach_their_specialist(name: str) -> None:
    ours, _ = questions(name)
    missed = [(text, want, got) for text, want in ours if (got := first(text)) not in want]
    assert len(missed) <= 0.1 * len(ours), missed


@pytest.mark.parametrize("name", ["phrasings_tired.toml", "phrasings_tired_fresh.toml"])
def test_tired_questions_reach_their_specialist(name: str) -> None:
    """Forty questions each, for the routes that were weakest: two more or less are chance, so the bar is below nine in ten."""
    ours, _ = questions(name)
    missed = [(text, want, got) for text, want in ours if (got := first(text)) not in want]
    assert len(ours) == 40 and len(missed) <= 6, missed


@pytest.mark.parametrize(
    "name", ["phrasings_night.toml", "phrasings_night_fresh.toml", "phrasings_last_night.toml"]
)
def test_questions_at_night_reach_their_specialist_and_homonyms_nobody(name: str) -> None:
    """Sets of forty to a hundred and twenty: the bar leaves room for chance, and for the few whose expected route another author would dispute."""
    ours, others = questions(name)
    missed = [(text, want, got) for text, want in ours if (got := first(text)) not in want]
    assert len(missed) <= 0.15 * len(ours), missed
    taken = [(text, got) for text in others if (got := first(text)) is not None]
    assert len(taken) <= 0.15 * len(others), taken


@pytest.mark.parametrize("name", ["phrasings_short.toml", "phrasings_short_fresh.toml"])
def test_the_shortest_questions_reach_their_specialist(name: str) -> None:
    """Thirty and twenty about what a curve does, with ten homonyms each; a question of four words leaves little to go by."""
    ours, others = questions(name)
    missed = [(text, want, got) for text, want in ours if (got := first(text)) not in want]
    assert len(missed) <= 0.1 * len(ours), missed
    taken = [(text, got) for text in others if (got := first(text)) is not None]
    assert len(others) == 10 and len(taken) <= 2, taken


@pytest.mark.parametrize(
    "text", ["why did it diverge?", "it diverges", "why is it learning so slowly?"]
)
def test_it_is_the_training_where_nothing_else_is_named(text: str) -> None:
    assert first(text) == "debugging-techniques"
    assert first(text.replace("it", "the river")) is None


@pytest.mark.parametrize(
    "text",
    [
        "the loss isn't decreasing",
        "the loss doesn’t decrease",
        "the loss wont decrease",
        "the loss stopped decreasing",
        "the loss is no longer decreasing",
        "the loss refuses to decrease",
        "the loss never decreases",
    ],
)
def test_what_does_not_happen_is_told_in_many_ways(text: str) -> None:
    assert tokens(text)[:2] == ["the", "loss"] and "not" in tokens(text)
    assert answer(text).cases[0].id == "loss-flat"


def test_questions_are_answered_from_their_case() -> None:
    asked = tomllib.loads((EVALS / "cases.toml").read_text(encoding="utf-8"))["case"]
    assert asked.keys() == {case.id for book in playbooks() for case in book.cases}
    given = [(case, [c.id for c in answer(q).cases]) for case, both in asked.items() for q in both]
    assert sum(case in cases for case, cases in given) >= 0.95 * len(given)
    assert sum(case in cases[:1] for case, cases in given) >= 0.85 * len(given)


@pytest.mark.parametrize("name", ["phrasings.toml", "phrasings_last.toml", "phrasings_dev.toml"])
def test_nine_in_ten_other_questions_reach_nobody(name: str) -> None:
    _, others = questions(name)
    taken = [(text, got) for text in others if (got := first(text)) is not None]
    assert len(taken) <= 0.1 * len(others), taken


def test_the_sets_are_apart_and_large_enough() -> None:
    def all_of(name: str) -> set[str]:
        ours, others = questions(name)
        return {text.strip().lower() for text in [*(t for t, _ in ours), *others]}

    held, last, dev = map(all_of, ["phrasings.toml", "phrasings_last.toml", "phrasings_dev.toml"])
    assert len(held) >= 300 and len(questions("phrasings.toml")[1]) >= 80
    assert not held & dev and not last & dev and not held & last
    tired, fresh = map(all_of, ["phrasings_tired.toml", "phrasings_tired_fresh.toml"])
    assert not fresh & (held | last | dev | tired)
    assert len(tired & (held | last | dev)) <= 1  # one message of torch's, pasted twice
    nights = ("phrasings_night.toml", "phrasings_night_fresh.toml", "phrasings_last_night.toml")
    night, later, latest = map(all_of, nights)
    before = held | last | dev | tired | fresh
    # five messages of torch's are pasted again, and two jokes made twice
    assert not night & later and not (night | later) & latest
    assert len((night | later | latest) & before) <= 7, (night | later | latest) & before
    short, more = map(all_of, ["phrasings_short.toml", "phrasings_short_fresh.toml"])
    assert len(short) == 40 and len(more) == 30 and not short & more
    assert not (short | more) & (before | night | later | latest)
    assert {w for _, names in questions("phrasings.toml")[0] for w in names} == {
        s.name for s in SPECIALISTS
    }


def test_no_held_out_question_is_a_phrase_of_a_playbook() -> None:
    says = {s.lower() for book in playbooks() for case in book.cases for s in case.says}
    # four short questions are what anybody would say, and stood in both before they met
    both = [text for text, _ in questions("phrasings.toml")[0] if text.strip().lower() in says]
    assert len(both) <= 4, both


def test_scores_mean_what_they_say() -> None:
    """Of the questions answered with a score above 0.9, at least nine in ten are answered right."""
    ours, others = questions("phrasings.toml")
    sure = []
    for text, want in [*ours, *((text, []) for text in others)]:
        routes = answer(text).routes
        if routes and routes[0][1] >= 0.9:
            sure.append(routes[0][0] in want)
    assert len(sure) >= 50 and sum(sure) / len(sure) >= 0.9


def test_an_answer_to_a_question_that_is_not_ours_prescribes_nothing() -> None:
    for text in questions("phrasings.toml")[1]:
        if first(text) is None:
            assert "```" not in chapter(answer(text))


def test_a_clip_beside_a_scaler_is_about_the_scaler() -> None:
    alone, beside = pointers("clip the gradients"), pointers("clip the gradients, GradScaler")
    assert beside["gradient-management"] < alone["gradient-management"]
    assert beside["mixed-precision-and-optimization"] > beside["gradient-management"]


def test_a_slip_of_the_finger_changes_little() -> None:
    assert pointers("gradeint cliping")["gradient-management"] >= 1.5
    assert scope("the optimzer state") >= 1.0
    assert scope("my browser has a memory leak") < 0.5


@pytest.mark.parametrize(
    "name",
    [
        "phrasings.toml",
        "phrasings_last.toml",
        "phrasings_tired_fresh.toml",
        "phrasings_night.toml",
        "phrasings_night_fresh.toml",
        "phrasings_last_night.toml",
    ],
)
def test_no_answer_makes_a_refuted_statement(name: str) -> None:
    from fallline.triage.evaluate import grade_text

    ours, others = questions(name)
    answers = {chapter(answer(text)) for text in [*(t for t, _ in ours), *others]}
    assert [complaint for text in sorted(answers) for complaint in grade_text(text)] == []

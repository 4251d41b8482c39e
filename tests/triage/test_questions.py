"""The default text of `fallline ask`, graded by the rubric of each question (benchmarks/RESULTS.md has the numbers)."""

from __future__ import annotations

import pytest

from judged import ask, misses, questions

# the second set was written before anything was tuned, and read once; what is tuned for it from now on no longer counts as fresh
BARS = {
    ("learn_a.toml", "learn_b.toml"): 0.85,
    ("sealed.toml",): 0.80,
    ("world.toml",): 0.85,
    ("world_fresh.toml",): 0.80,
}


@pytest.mark.parametrize("files", BARS, ids="-".join)
def test_questions_are_answered_in_the_default_text(files: tuple[str, ...]) -> None:
    asked = questions(*files)
    wrong = {q.name: found for q in asked if (found := list(misses(q, ask(q))))}
    assert len(wrong) <= (1 - BARS[files]) * len(asked), wrong

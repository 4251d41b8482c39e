"""`fallline measure data` and `fallline run`: planted mistakes are reported with their code and line, right set-ups are silent.

A few of each here, in plain loops; all of them, with Trainer, TRL and PEFT, in `benchmarks/fine_tuning.py` (and with `-m long`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from judging import HERE, Judged, bits, expected, judge, warm

QUICK = (
    "plain_end_is_padding",
    "plain_shifted_twice",
    "plain_packed_with_cache",
    "trainer_nothing_learned",
    "peft_new_tokens_frozen",
    "grpo_plain_sampled_with_dropout",
)
# what only `measure data` looks at: other datasets, and inputs that are not tokens
DATA_ONLY = ("FL026", "FL028")
QUICK_WATCHED = (
    "plain_end_is_padding",
    "trainer_nothing_learned",
    "grpo_plain_sampled_with_dropout",
)
SAME_BITS = ("plain_llama", "trainer_texts", "sft_lora", "peft_lora", "grpo")
SILENT = ("plain_packed", "plain_adversarial", "peft_lora", "rl_actor_critic")


def every(kind: str, quick: tuple[str, ...]) -> list[object]:
    """Each script; those that are not among the quick ones take part in the long tests."""
    marks = {True: (), False: (pytest.mark.long,)}
    scripts = sorted((HERE / kind).glob("*.py"))
    return [pytest.param(s, id=s.stem, marks=marks[s.stem in quick]) for s in scripts]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    warm()


def told(judged: Judged) -> str:
    return f"{judged.name}: {judged.error}\n{judged.text}"


@pytest.mark.parametrize("script", every("planted", QUICK))
def test_a_planted_mistake_is_reported_with_its_code_and_line(script: Path) -> None:
    judged = judge(script)
    code, lines = expected(script)
    assert lines, "the script marks its place with # HERE"
    assert judged.places & {(code, line) for line in lines}, told(judged)


@pytest.mark.parametrize("script", every("right", SILENT))
def test_a_right_set_up_is_silent(script: Path) -> None:
    judged = judge(script)
    assert not judged.error and judged.findings == [], told(judged)


@pytest.mark.parametrize("script", every("planted", QUICK_WATCHED))
def test_a_watched_run_reports_it_too(script: Path) -> None:
    code, lines = expected(script)
    judged = judge(script, watched=True)
    if code not in DATA_ONLY:
        assert judged.places & {(code, line) for line in lines}, told(judged)


@pytest.mark.parametrize("script", every("right", ("peft_lora",)))
def test_a_watched_run_is_silent_where_all_is_right(script: Path) -> None:
    judged = judge(script, watched=True)
    # other rules have an opinion of their own: a policy that is trained in eval mode is FL804
    ours = [f for f in judged.findings if f["code"].startswith("FL0")]
    assert not judged.error and ours == [], told(judged)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "peft_lora" else pytest.mark.long) for n in SAME_BITS]
)
def test_nothing_of_the_results_changes(name: str) -> None:
    script = HERE / "right" / f"{name}.py"
    alone, measured, watched = (bits(script, how) for how in ("alone", "measured", "watched"))
    assert len(alone) >= 4 and watched == alone
    assert len(measured) >= 3 and measured == alone[: len(measured)]

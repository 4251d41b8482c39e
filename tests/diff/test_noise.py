"""Noise begins at the rounding of the format and grows smoothly; a change does not."""

from __future__ import annotations

import math
import random

import pytest

from fallline.runs.noise import Judged, envelope, floor_of, gaps, judge, judge_together


def drifting(seed: int, first: float, growth: float, updates: int = 300) -> dict[int, float]:
    """Gaps of two runs that rounding carries apart: random sizes around an exponential that levels off."""
    made = random.Random(seed)
    return {u: min(first * growth**u, 0.3) * abs(made.gauss(0, 1)) for u in range(updates)}


@pytest.mark.parametrize("growth", [1.0, 1.01, 1.05, 1.2, 1.6])
@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_what_rounding_grows_into_is_noise(format: str, growth: float) -> None:
    first = floor_of(format) / 50
    assert [judge(drifting(seed, first, growth), format).jump for seed in range(40)] == [None] * 40


@pytest.mark.parametrize("at", [0, 1, 40])
def test_a_jump_out_of_the_noise_is_found_where_it_is(at: int) -> None:
    found = drifting(1, 1e-7, 1.02, 100)
    found |= {u: found[u] + 0.01 for u in found if u >= at}
    assert judge(found, "float32").jump == at


def test_a_change_that_bfloat16_would_hide_is_seen_in_float32() -> None:
    found = dict.fromkeys(range(20), 0.0005)
    assert judge(found, "float32").jump == 0
    assert judge(found, "bfloat16").jump is None


def test_a_repeat_measures_the_noise() -> None:
    """Where training is so unstable that noise jumps, a repeat shows it."""
    wild = {0: 0.0, 1: 1e-3, 2: 0.02}
    assert judge(wild, "float32").jump == 1
    assert judge(wild, "float32", envelope([{0: 0.0, 1: 5e-4, 2: 0.03}])).jump is None
    assert judge({0: 0.0, 1: 0.2, 2: 0.5}, "float32", envelope([wild])).jump == 1


def test_gaps_are_of_updates_that_both_have() -> None:
    nan = math.nan
    found = gaps({0: 2.0, 1: 2.0, 2: nan, 3: nan, 4: 1.0}, {0: 2.0, 1: 1.0, 2: nan, 3: 1.0})
    assert found == {0: 0.0, 1: 0.5, 2: 0.0, 3: math.inf}


def test_a_loss_that_has_become_tiny_rounds_as_its_first_values_did() -> None:
    found = gaps({**dict.fromkeys(range(16), 2.0), 16: 1e-6}, {**dict.fromkeys(range(16), 2.0), 16: 1.2e-6})  # fmt: skip
    assert judge(found, "float32").jump is None


def test_updates_that_were_not_recorded_have_carried_the_runs_on() -> None:
    """On a busy machine a run records only some of its updates."""
    for seed in range(40):
        found = drifting(seed, 1e-7, 1.05)
        seen = {u: gap for u, gap in found.items() if u < 60 or u > 220}
        assert judge(seen, "float32").jump is None
    assert judge({0: 1e-9, 1: 1e-7, 9000: 0.1}, "float32").jump is None


def test_training_may_be_unstable_where_it_was_not_recorded_as_it_was_before() -> None:
    """The runs part slowly but for one stretch, and are far apart after many updates that nobody recorded."""
    slow = {u: 1e-7 * 1.018**u for u in range(250)}
    last = slow[249]
    found = {**slow, **{250 + u: last * 1.17**u for u in range(16)}, **dict.fromkeys(range(266, 313), last * 12)}  # fmt: skip
    assert judge({**found, 377: 0.36}, "float32").jump is None
    assert judge({**found, 313: 0.36}, "float32").jump == 313
    assert judge({**slow, 270: 0.36}, "float32").jump == 270


def test_a_spike_after_training_has_carried_the_runs_apart_is_noise() -> None:
    found = {u: 1e-7 * 1.03**u for u in range(380)}  # to 0.7 percent
    assert judge({**found, 380: 0.43}, "float32").jump is None
    found = {u: 1e-7 * 1.03**u for u in range(100)}  # to 2e-6
    assert judge({**found, 100: 1e-3}, "float32").jump == 100


def test_a_unit_that_flips_changes_the_gradient_and_not_the_loss() -> None:
    losses = {u: 1e-7 * (u > 5) for u in range(80)}
    norms = Judged({73: 4e-4}, room=16.0, flips=2e-3)
    assert judge_together([Judged(losses), norms], "float32")[1].jump is None
    same = Judged(dict.fromkeys(range(80), 0.0))
    assert judge_together([same, norms], "float32")[1].jump == 73
    assert judge_together([Judged(losses), Judged({73: 0.05}, room=16.0, flips=2e-3)], "float32")[1].jump == 73  # fmt: skip

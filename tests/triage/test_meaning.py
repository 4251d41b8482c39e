"""What is near in meaning is found in other words, and everywhere by the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.triage import meaning, mirror
from fallline.triage.answer import answer
from fallline.triage.claim import claims


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("accuracy drops as soon as I put the network into evaluation mode", "eval-mode-is-worse"),
        ("I fixed the seed and still get other numbers each time", "still-different"),
        ("the GPU sits idle most of the time while data is read", "loader-is-the-limit"),
    ],
)
def test_other_words_for_the_same_are_near(asked: str, wanted: str) -> None:
    near = meaning.nearness(asked, asked)
    best = sorted(near, key=lambda n: -near[n])[:5]
    assert wanted in [claims()[n].id for n in best]


def test_every_wording_is_nearest_to_its_own_claim() -> None:
    some = range(0, len(claims()), 40)
    wordings = [(n, ask) for n in some for ask in claims()[n].asks[:1]]
    found = 0
    for n, ask in wordings:
        near = meaning.nearness(ask, ask)
        found += max(near, key=lambda c: near[c]) == n
    assert found >= 0.9 * len(wordings)


def test_a_vector_is_the_sum_of_its_rows() -> None:
    """Rows are added as one long number; one by one they give the same."""
    table = meaning._table()
    words = ["my", "validation", "loss", "qqzx"]
    rows = [table.rows[w] for w in ("my", "validation", "loss")]
    rows += [
        table.rows[pair] for pair in ("my validation", "validation loss") if pair in table.rows
    ]
    plain = [0] * table.width
    for n in rows:
        numbers = table.numbers[n * table.width : (n + 1) * table.width]
        plain = [t + table.scale[n] * (x - 128) for t, x in zip(plain, numbers, strict=True)]
    vector = meaning._vector(words)
    factor = max(vector, key=abs) / max(plain, key=abs)
    assert all(abs(v - factor * p) <= 1.5 for v, p in zip(vector, plain, strict=True))


def test_what_has_no_known_word_is_near_nothing() -> None:
    assert meaning.nearness("qqzx wvvk", "qqzx wvvk") == {}


def test_the_table_is_small_and_says_where_it_is_from() -> None:
    home = Path(meaning.__file__).parent
    assert (home / "meaning.bin").stat().st_size < 6_000_000
    assert "Apache License" in (home / "meaning.LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("training loss goes down but validation loss goes up", {"training loss down", "held-out loss up"}),
        ("my val loss is lower than my train loss", {"held-out better"}),
        ("training accuracy is much higher than validation accuracy", {"training better"}),
        ("validation loss goes up and down", set()),
        ("the training loss does not decrease", set()),
    ],
)  # fmt: skip
def test_what_the_curves_do_is_read(text: str, says: set[str]) -> None:
    assert mirror.told(text) == says


@pytest.mark.parametrize(
    ("asked", "never"),
    [
        ("training accuracy is much higher than validation accuracy", "validation-better-than-training"),
        ("validation loss goes down but training loss goes up", "validation-loss-never-falls"),
        ("validation loss is lower than training loss", "validation-loss-much-higher"),
        ("training loss falls and validation loss rises", "training-loss-rises"),
    ],
)  # fmt: skip
def test_a_mirror_image_is_no_answer(asked: str, never: str) -> None:
    assert never not in answer(asked).reply.claims

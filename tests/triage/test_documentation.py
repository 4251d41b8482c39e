"""What the installed libraries document, paragraph by paragraph, and what is quoted of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fallline.triage.answer import answer
from fallline.triage.library import installed, passages, told_of
from fallline.triage.library.passages import Passage

SOURCE = '''
class Meter(Base):
    r"""Averages a number over the batches of an epoch.

    The average is weighted by the samples of each batch. A batch without samples
    counts nothing.

    Args:
        window (int, optional): how many batches are averaged. Older ones are
            forgotten (default: all).
        unit: what the number is measured in.

    Example::

        >>> meter = Meter(window=3)

    .. note::
        A meter that is read resets itself.
    """

    def __init__(self, window=None): ...

    def read(self):
        """Returns the average so far, and begins anew after it."""

    def _hidden(self):
        """This says nothing to anybody who reads the documentation."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Passage]]:
    """The passages of one file that stands for torch."""
    home = tmp_path / "torch" / "optim"
    home.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (home / "meter.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    caches = [
        f for m in (installed, passages) for f in vars(m).values() if hasattr(f, "cache_clear")
    ]
    for cached in caches:
        cached.cache_clear()
    yield [passages.passages().passage(n) for n in range(len(passages.passages().rows))]
    for cached in caches:
        cached.cache_clear()


def test_paragraphs_and_arguments_are_passages(library: list[Passage]) -> None:
    found = {(p.owner, p.argument): p.says for p in library}
    assert found["Meter", "window"].startswith(
        "how many batches are averaged. Older ones are forgotten"
    )
    assert found["Meter", "unit"] == "what the number is measured in."
    assert "begins anew" in found["Meter.read", ""]
    says = " ".join(p.says for p in library)
    assert "resets itself" in says and "weighted by the samples" in says
    assert ">>>" not in says and "nothing to anybody" not in says


def test_the_sentence_that_is_asked_for_is_quoted(library: list[Passage]) -> None:
    told = told_of("Does `Meter` count a batch without samples?", "torch")
    assert told is not None and told.answers
    assert told.says.startswith("A batch without samples counts nothing")


def test_what_names_nothing_documented_is_not_looked_up(library: list[Passage]) -> None:
    assert told_of("Does the average count a batch without samples?", "torch") is None
    assert told_of("Does `Gauge` count a batch without samples?", "torch") is None


def test_the_documentation_is_quoted_where_no_claim_speaks_of_the_name() -> None:
    says = answer("What does `lr_scheduler_step` do in Lightning?").reply.says
    assert "calls each scheduler" in says and "LightningModule.lr_scheduler_step" in says

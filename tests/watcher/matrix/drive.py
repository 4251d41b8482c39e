"""Train something in this process, watched as `fallline run` would, and say what was found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fallline.conclude import conclude
from fallline.finding import Finding
from fallline.rules import rule_by_code
from fallline.runs.series import Series, Track
from fallline.verdict import judge
from fallline.watcher.session import Options, Session

__all__ = ["Watched", "updates_needed", "watched"]


@dataclass
class Watched:
    findings: list[Finding]
    run: Series
    failure: str | None  # of the watcher itself

    @property
    def codes(self) -> set[str]:
        return {f.code for f in self.findings}

    @property
    def serious(self) -> list[Finding]:
        """What a healthy run must not have."""
        return [f for f in self.findings if f.severity.value != "info"]


def watched(train: Callable[[], None], seed: int = 0) -> Watched:
    """What the watcher says about this training."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Options(Path(folder) / "run"), judge)
        session.start(rebind=True)
        try:
            train()
        finally:
            session.finish("finished")
        assert session.recorder is not None, "nothing was trained"
        run, findings = conclude(session.recorder.folder)
        return Watched(findings, run, session.failed)


def updates_needed(seen: Watched, codes: frozenset[str]) -> int | None:
    """After how many updates one of these is told for the first time; None for rules over events, judged from the 4th on."""
    told = [f for f in seen.findings if f.code in codes]
    exact = [f.evidence["step"] for f in told if f.code[3:5] == "62" and f.code < "FL624"]
    if exact:
        return int(min(exact)) + 1
    rules = [
        rule
        for f in told
        if (rule := rule_by_code(f.code)) is not None and rule._defines("check_series")
    ]
    if not rules:
        return None
    last = max(t.rows[-1].index for t in seen.run.tracks if t.rows)
    for end in range(5, last + 6, 5):
        beginning = Series([_until(t, end) for t in seen.run.tracks], seen.run.ranks)
        if any(f.code in codes for rule in rules for f in rule.check_series(beginning)):
            return end
    return last + 1


def _until(track: Track, end: int) -> Track:
    """The first updates of a track."""
    return Track(
        track.rank,
        track.optimizer,
        [r for r in track.rows if r.index < end],
        [s for s in track.samples if s.index < end],
        {i: f for i, f in track.fingerprints.items() if i < end},
        track.facts,
        {"updates": end, "clipped": 0},
    )

"""Experiments that must not pass, in place of our own."""

from __future__ import annotations

import pytest

from fallline.proof import experiment

FALSE = "proof_fixtures.numerics.false_claims"


@pytest.fixture
def false_claims(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Their names; `fallline prove` knows these and no others."""
    names = ["sum-is-exact", "raises", "dies", "never-ends", "needs-a-package", "needs-a-device"]
    monkeypatch.setattr(experiment, "where", lambda: dict.fromkeys(names, FALSE))
    return names

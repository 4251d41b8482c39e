"""`fallline lsp` where something is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


def test_without_pygls_it_says_what_to_install(
    fallline: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in {"pygls", "lsprotocol"}]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.startswith("fallline.lsp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pygls", None)
    ran = fallline("lsp")
    assert ran.status == 2
    assert "pip install 'fallline[lsp]'" in ran.err and "Traceback" not in ran.err

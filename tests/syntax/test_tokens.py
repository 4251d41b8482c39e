"""Rules are passed over by the words of a file: the answer is that of a search in its bytes."""

from __future__ import annotations

import pytest

from fallline.rules import all_rules, reader_rules
from fallline.syntax import Source, tokens

FILES = [
    "import torch\nclass Näher(nn.Module):\n    def forward(self, x):\n        return x.log1p() != .5\n"
    'optimizer.param_groups[0]["lr"] = 1e-3\n',
    "import torch\ndef forward_all(x): return x.forward() and x.log(5)\n",
    "",
]


@pytest.mark.parametrize("remembered", [200_000, 0])
def test_a_token_is_held_where_the_bytes_hold_it(
    monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr(tokens, "_MOST", remembered)
    wanted = {token for rule in all_rules() for token in rule.tokens}
    wanted |= {b"log(", b"log1p(", b".5", b"5", b"!=", b"orward", b"def forward", b"forward def"}
    wanted |= {b'["lr"]', b"['lr']", "äh".encode(), b"Module)", b"Module("}
    looked_for = tokens.Tokens(frozenset(wanted))
    for text in [*FILES, *FILES]:  # what one file taught must not be believed of the next
        held = Source("a.py", text).held(looked_for)
        assert held == {token for token in wanted if token in text.encode()}


def test_rules_for_source_are_those_that_look_at_it() -> None:
    looks = [r for r in all_rules() if r._defines("check") or r._defines("check_syntax")]
    assert list(reader_rules()) == looks
    assert len(looks) < len(all_rules())

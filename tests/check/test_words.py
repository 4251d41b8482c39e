"""Rules are passed over by the words of a file: the answer is that of a search in its bytes."""

from __future__ import annotations

from fallline.rules import all_rules, reader_rules
from fallline.verdict.words import Words

DATA = (
    "import torch\nclass Näher(nn.Module):\n    def forward(self, x):\n        return x.log1p() != .5\n"
    'optimizer.param_groups[0]["lr"] = 1e-3\n'
).encode()


def test_a_token_is_held_where_the_bytes_hold_it() -> None:
    words = Words(DATA)
    tokens = {token for rule in all_rules() for token in rule.tokens}
    tokens |= {b"log(", b"log1p(", b".5", b"5", b"!=", b"orward", b"def forward", b"forward def"}
    tokens |= {b'["lr"]', b"['lr']", "äh".encode(), b"Module)", b"Module("}
    for token in tokens:
        assert words.holds(token) is (token in DATA), token


def test_one_of_several_is_enough_and_none_asked_for_is_held() -> None:
    words = Words(DATA)
    assert words.holds_any((b"backward", b"torch"))
    assert not words.holds_any((b"backward", b"Torch"))
    assert words.holds_any(())
    assert not Words(b"").holds(b"torch")


def test_rules_for_source_are_those_that_look_at_it() -> None:
    looks = [r for r in all_rules() if r._defines("check") or r._defines("check_syntax")]
    assert list(reader_rules()) == looks
    assert len(looks) < len(all_rules())

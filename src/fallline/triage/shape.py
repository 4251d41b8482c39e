"""The shape of a question: does it want a yes or a no, and which way round is it asked?"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Shape"]

_VERBS = "is|are|isn't|aren't|was|does|do|don't|doesn't|did|should|shouldn't|can|can't|could|will|won't|would|must|may|has|have|need"
_REST = r"(?:[^.?!\n]|[.](?=\S)){0,200}[?]"  # to the end of the sentence; a dot inside a name does not end it
_ASKED = re.compile(
    rf"(?i)(?:^|[.!?:;,\n]\s*|\b(?:so|and|but|then|or|hi|hey|hello|also)[, ]+)(?:{_VERBS})\b{_REST}"
)
_INSIDE = re.compile(
    rf"(?i)(?<!what )(?<!how )(?<!why )(?<!where )(?<!when )(?<!which )\b(?:{_VERBS})\s+(?:i|we|you|it|this|that|the|there|my|they)\b{_REST}"
)
_BARE = re.compile(
    rf"(?i)^\W*(?:{_VERBS})\s+(?:i|we|it|this|my|the|there|that|one|a|an|you|dropout|\w+)\b"
)
# who says it with confidence wants it confirmed
_CONFIRM = re.compile(
    r"(?i)\b(?:right|ok|okay|correct|agreed?|good|fine|true|yes|normal|safe)\s*\?|\b(?:just |please )?confirm\b|\btell (?:him|her|them|me) (?:he|she|they|i)(?:'s|'re|'m| is| are| am) right\b|"
    r"\bjust tell me to\b|\beverybody knows\b|\bobviously\b|\bi(?:'m| am) sure\b|\bperiod\b|\bno need to\b|\bso (?:skip|leave|ignore) it\b|\bskip the rest\b|"
    r"\bmust be (?:a|my|the)\b|\bi(?:'ll| will) (?:just )?(?:leave|skip|ignore|clamp|keep|stay)\b|\bi just\b"
)
_OPEN = re.compile(
    r"(?i)\b(?:how|where|what|which|why|when|who)\b[^.?!\n]{0,200}\?|^\W*(?:how|where|what|which|why|when|who)\b"
)
# asked whether it is a mistake, the answer to "is it right?" changes sides
_TURNED = re.compile(
    r"(?i)\b(?:problem|wrong|bad|harmful|bug|mistake|worr\w+|hurt\w*|dangerous|broken|break)\b"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of reply a question waits for."""

    decides: bool  # it wants a yes or a no
    turned: bool  # and asks whether something is wrong, not whether it is right

    @classmethod
    def of(cls, prose: str) -> Shape:
        asked = _ASKED.search(prose)
        if asked is None and _OPEN.search(prose) is None:
            asked = _INSIDE.search(prose)
        decides = asked is not None or _CONFIRM.search(prose) is not None
        if not decides and _OPEN.search(prose) is None:
            decides = _BARE.search(prose) is not None
        turned = asked is not None and _TURNED.search(asked[0]) is not None
        return cls(decides, turned)

    def verdict(self, verdict: str | None, turns: bool) -> str | None:
        """The verdict of a claim, as this question has to hear it."""
        if not self.decides or verdict is None:
            return None
        if self.turned and turns and verdict in _OTHER:
            return _OTHER[verdict]
        return verdict


_OTHER = {"yes": "no", "no": "yes"}

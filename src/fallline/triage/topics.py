"""The questions in a post: the sentences that ask, and which of them can be answered on their own.

"1) how many epochs? 2) the GPU is idle, how do I use more CPUs?" asks two things, and the words of one dilute those of the other. "Is this correct?" asks only together with what came before.
"""

from __future__ import annotations

import re

from fallline.triage.frame import framed, uncommon
from fallline.triage.words import tokens

__all__ = ["SENTENCE", "asking", "questions_in"]

SENTENCE = re.compile(r"\n+|(?<=[.?!])\s+|(?<=[？。！])")
_ASKS = re.compile(
    r"^(?:so |and |but |also |or )?(?:how|why|what|which|where|when|is|are|does|do|did|can|could|should|would|will|any) |\b(?:wonder|no idea|any idea|know (?:why|how|what|if|whether)|how (?:to|do i|can i))\b"
)
_NUMBERED = re.compile(r"(?:^|(?<=[\s:;,.?]))\(?[1-4a-d][).]\s+(?=\w)")
_ALSO = re.compile(
    r"[,;] and (?=(?:do|does|is|are|should|can|must|how|why|what|which|where|when|will)\b)"
)
_FEWEST, _MOST = 4, 3  # words of a question that stands by itself; questions that are answered


def _sentences(prose: str) -> list[str]:
    return [s.strip() for s in SENTENCE.split(prose.strip()) if s.strip()]


def asking(prose: str) -> str:
    """The title of a question and those of its sentences that ask: a long post tells much else."""
    sentences = _sentences(prose)
    asked = [s for s in sentences[1:] if s[-1] in "?？" or _ASKS.search(s)]
    return "\n".join([*sentences[:1], *asked])


def questions_in(prose: str) -> list[str]:
    """The questions of a post that asks several, in their order: those that are numbered, or name something of their own, and so can be answered without the others."""
    numbered = [" ".join(part.split()) for part in _NUMBERED.split(prose) if "?" in part]
    if len(numbered) > 1:
        return numbered[:_MOST]
    asked = [part for s in _sentences(prose) if s[-1] == "?" for part in _ALSO.split(s)]
    if len(asked) < 2:
        return []
    return [q for q in asked if len(tokens(q)) >= _FEWEST and uncommon(framed(q))][:_MOST]

"""What a post asks, apart from what it tells: its title, the sentences that ask, those that complain, and the case.

A long post tells much else: what was tried, what is installed, whom it thanks. "Does it matter?" asks only together with the sentence before it, and "can anyone help?" asks nothing.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

from fallline.triage.frame import framed, topics, uncommon
from fallline.triage.symptoms import symptoms
from fallline.triage.words import tokens

__all__ = ["Asked", "questions_in", "sentences_of"]

_BOUNDARY = re.compile(r"\n+|(?<=[.!])\s+|(?<=[?？])\s*(?=[\s\w])|(?<=[。！])")
_WIDE = 60  # characters: a line that is longer was wrapped, not ended
_OPENING = r"^\W*(?:(?:so|and|but|also|or|then|hence|therefore|furthermore|hi|hey|hello|my question is|question)\b[,: ]*)*"
_ASKS = re.compile(
    rf"(?i)[?？]\s*\W{{0,3}}$|{_OPENING}(?:how|why|what|which|any (?:idea|suggestion|advice|help|thought|hint)s?)\b"
    r"|\b(?:wonder\w*|no idea|any idea|curious|confused (?:about|by)|know (?:why|how|what|if|whether)|how (?:to|do i|can i|should i)|(?:want|like|need) to (?:know|ask|confirm)|not sure (?:if|why|how|whether|what)"
    r"|(?:can|could|do)(?: ?n['’]?t| not)? (?:figure out|understand|explain)|(?:anyone|somebody|someone|you) (?:explain|clarify|tell me)|please (?:tell|advise|explain|clarify|confirm|correct))\b"
)
# asks for help, not for anything in particular
_HELP = re.compile(
    r"(?i)\b(?:help|suggestions?|ideas?|advi[cs]e|thoughts?|guidance|guidances|hints?|clarif\w+|explain|solve|fix|same (?:problem|issue)|what'?s wrong|wrong|missing|comments?|anyone|somebody)\b"
)
_COURTESY = re.compile(
    r"(?i)^\W*(?:(?:hi|hello|hey|dear|greetings)\b[^.?!]{0,40}[,.!]?|(?:many |a lot of )?thank\w*\b.*|thx\b.*|(?:best|kind|warm) (?:regards|wishes)\b.*|regards|cheers|(?:i(?:'m| am) )?look\w* forward\b.*|(?:any|your) (?:help|reply|advice|answer)\b[^?]*|(?:first of all,? )?thank\w*.*|great work\b.*|.*\bappreciate[ds]?\b.*)\W*$"
)
_WORD = re.compile(r"[^\W\d_]{2}")
_NUMBERED = re.compile(r"(?:^|(?<=[\s:;,.?]))\(?[1-4a-d][).]\s+(?=\w)")
_ALSO = re.compile(
    r"[,;] and (?=(?:do|does|is|are|should|can|must|how|why|what|which|where|when|will|i wonder)\b)"
)
_BESIDES = re.compile(
    r"(?i)\W*(?:also|besides|in addition|additionally|moreover|furthermore|another (?:problem|question|issue|thing)|secondly?)\b"
)
_FEWEST, _MOST = 4, 3  # words of a question that stands by itself; questions that are answered
_FEW = 3  # sentences below the title of a post that is not long
_COMPLAINTS = 1  # sentences that complain, beside questions that ask something


def sentences_of(prose: str) -> list[str]:
    """The sentences of a text that people wrote; a line that ends where it is full goes on in the next one."""
    return [s.strip() for s in _BOUNDARY.split(_joined(prose.strip())) if re.search(r"\w", s)]


def _joined(text: str) -> str:
    lines = text.split("\n")
    found = lines[0]
    for before, line in itertools.pairwise(lines):
        goes_on = len(before) > _WIDE and before[-1:] not in ".?!:;" and re.match(r"[^\W\d_]", line)
        found += f" {line}" if goes_on else f"\n{line}"
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """The sentences of a post by what they do."""

    title: str
    questions: tuple[str, ...]  # each with the sentence that it is about, where it names nothing
    complaints: tuple[str, ...]
    case: tuple[str, ...]

    @staticmethod
    @lru_cache(maxsize=8)
    def of(prose: str) -> Asked:
        sentences = [s for s in map(_plain, sentences_of(prose)) if s]
        title, rest = "".join(sentences[:1]), sentences[1:]
        questions, used = [], set[int]()
        for n, sentence in enumerate(rest):
            if not _ASKS.search(sentence):
                continue
            used.add(n)
            if not _names(sentence) and _HELP.search(sentence):
                continue
            if not _names(sentence) and n and n - 1 not in used:
                used.add(n - 1)
                sentence = f"{rest[n - 1]} {sentence}"
            questions.append(sentence)
        left = [s for n, s in enumerate(rest) if n not in used]
        complaints = [s for s in left if framed(s).signs or symptoms(s)]
        case = [s for s in left if s not in complaints]
        return Asked(title, tuple(questions), tuple(complaints), tuple(case))

    @property
    def text(self) -> str:
        """What is asked, in few sentences: all of a short post."""
        if len(self.questions) + len(self.complaints) + len(self.case) < _FEW:
            return "\n".join([self.title, *self.questions, *self.complaints, *self.case])
        complaints = self.complaints[: _COMPLAINTS if self.questions else _COMPLAINTS + 1]
        return "\n".join(filter(None, [self.title, *self.questions, *complaints]))


def questions_in(prose: str) -> list[str]:
    """The questions of a post that asks several, in their order: those that are counted, or name something of their own, and so can be answered without the others."""
    counted = [" ".join(part.split()) for part in _NUMBERED.split(prose) if "?" in part]
    if len(counted) > 1:
        return counted[:_MOST]
    asked = Asked.of(prose)
    titled = [asked.title] if asked.title.endswith(("?", "？")) else []
    besides = [s for s in asked.complaints if _BESIDES.match(s)]
    parts = [part for q in (*titled, *asked.questions, *besides) for part in _ALSO.split(q)]
    if len(parts) < 2 and not besides:
        return []
    return [q for q in parts if len(tokens(q)) >= _FEWEST and topics(framed(q))][:_MOST]


def _plain(sentence: str) -> str:
    """A sentence as it stands; nothing of one that only greets, thanks or heads a part of a form."""
    if _COURTESY.match(sentence) or not _WORD.search(sentence):
        return ""
    if sentence.startswith("#"):
        sentence = sentence.lstrip("# ")
        return sentence if uncommon(framed(sentence)) else ""
    return sentence


def _names(sentence: str) -> bool:
    """Whether a sentence names a thing or a sign, so that it asks something by itself."""
    frame = framed(sentence)
    return bool(frame.things or frame.signs)

"""Claims: short answers to the questions people ask, as Markdown that people can read and edit (`claims/*.md`).

    # mixed-precision-and-optimization        the specialist of the claims below

    ## clip-scaled                            a stable name
    ask: is it ok to clip before unscale_?    how people ask it (one wording a line)
    when: clip* & unscale*|scaler             words the question must hold: & all of them, | one of them, `x.y(` as written
    never: bfloat16                           words that rule the claim out
    message: unscale_() has already {…}       a pasted message; {name} is read from it, {…} is skipped
    reads: fragmented                         what the numbers or names in the message must show (messages.py)
    ran: optim/|load_state_dict               with a message: what the files and lines of the pasted traceback must hold, one of them as written
    wraps: yes                                the message only reports that something else failed: any other one decides
    rules: FL201                              findings that lead here
    code: optimizer-before-model              a shape of the pasted code that leads here (seen.py)
    sees: X.softmax(dim=0)                    in `points/`: what the pasted code must hold, capitals for anything (pattern.py); one line for each spelling
    and: L.backward()                         and this too, with the same things for the same letters
    without: X.detach()                       and this nowhere
    where: X ~ logits|scores                  and what a letter stands for reads like this (`!~`: does not)
    facts: output sigmoid & loss mse          in `points/causes.md` and `points/messages.md`: what the pasted program is made of (program.py, layers.py, carried.py) and what the sizes in its message say (sizes.py): & all of them, | one of them
    explains: stuck, same                     the complaints and messages that this can be the cause of (symptoms.py); the likely causes come first
    weak: yes                                 one more thing to look at; it answers nothing alone
    asked: softmax|dim*                       said only if the question names this; without it the code alone leads here
    shows: loss zero & norm nan always        what the numbers of a pasted log must show to lead here (numbers.py)
    plain: stuck                              the general answer to this complaint (symptoms.py), for a question in everyday words only
    verdict: no                               to the wordings above that want a yes or a no, and to questions that ask the same; `no, turns`: to "is it right?"
    yes: must I unscale before I clip?        a wording with a verdict of its own (`yes:`, `no:`)
    clarify: Do you use ...?                  what to ask back when the question is too vague
    border: yes                               the question is outside training: one sentence says so, and nothing is advised
    backs: clip-scaled-freezes-sgd            rules, facts, or a behaviour of torch that a test executes (`torch:NAME`)
    > The answer, in one to three sentences.
    1. What to do first.
       if: under which condition
       unless: words that say it is done already or ruled out
       only: words without which it is not worth saying
       see: how to see that it worked
       world: x = torch.ones(2)               what the code needs beside the names of a training script, for its test
       check: x.sum() == 2                    what must hold after the code has run; the test evaluates it
       ```python
       code
       ```

The same words are never regular expressions: hundreds of those would take longer to compile than a question takes to answer.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fallline.triage.kept import kept
from fallline.triage.words import Phrase, Said, phrases

__all__ = ["Action", "Claim", "Condition", "claims", "points"]

_HOME = Path(__file__).parent
_PROOF = frozenset({"check", "world", "after", "ranks", "gpu", "lightning"})


class Condition:
    """Words that a question must hold: one of each group, as whole words or, in backticks, as written.

    They are taken apart when they are first looked for: of a thousand conditions a question needs a few.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def groups(self) -> tuple[tuple[Phrase | str, ...], ...]:
        groups = (group.split("|") for group in self.text.split("&"))
        return tuple(tuple(_wanted(one.strip()) for one in group) for group in groups)

    @cached_property
    def each(self) -> list[Condition]:
        """Its groups, as conditions of their own."""
        return [Condition(group) for group in self.text.split("&")]

    def holds(self, words: Said, text: str) -> bool:
        for group in self.groups:  # hot: no generators
            for one in group:
                if one in text if isinstance(one, str) else one.found_in(words):
                    break
            else:
                return False
        return True

    def words(self) -> list[str]:
        """All words of its phrases; one that ends in `*` is a beginning."""
        phrases = (one for group in self.groups for one in group if isinstance(one, Phrase))
        return [w for one in phrases for parts in one.spellings for w in parts if w != "..."]


def _wanted(text: str) -> Phrase | str:
    return text.strip("`").lower() if text.startswith("`") else phrases(text)


@dataclass(slots=True)
class Action:
    """One thing to do, under its condition, and how to see that it worked."""

    do: str
    when: str = ""
    code: str = ""
    see: str = ""
    unless: Condition | None = None
    only: Condition | None = None
    proof: dict[str, str] = field(default_factory=dict)  # how a test runs the code (_PROOF)

    def fits(self, words: Said, text: str) -> bool:
        done = self.unless is not None and self.unless.holds(words, text)
        return not done and (self.only is None or self.only.holds(words, text))


@dataclass(slots=True)
class Claim:
    """One question people ask, and its answer."""

    id: str
    specialist: str
    says: str = ""
    asks: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    reads: str = ""
    ran: tuple[str, ...] = ()
    wraps: bool = False
    when: Condition | None = None
    never: Condition | None = None
    rules: tuple[str, ...] = ()
    code: str = ""
    sees: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    asked: Condition | None = None
    shows: tuple[tuple[str, ...], ...] = ()  # groups of facts, one of each
    facts: tuple[tuple[str, ...], ...] = ()  # likewise, of a pasted program
    explains: tuple[str, ...] = ()
    weak: bool = False
    plain: str = ""
    verdict: str | None = None
    turns: bool = False
    own: dict[str, str] = field(default_factory=dict)  # wordings with a verdict of their own
    clarify: str = ""
    border: bool = False
    backs: tuple[str, ...] = ()
    actions: list[Action] = field(default_factory=list)

    @property
    def subject(self) -> list[str]:
        """The words that name what the claim is about: the first group that it asks for."""
        if self.when is None:
            return []
        return [w.rstrip("*") for w in self.when.each[0].words()]

    def shown_by(self, facts: Collection[str]) -> str | None:
        """The first fact of a pasted log that leads here; None where one is missing."""
        held = [next((f for f in facts if f in group), None) for group in self.shows]
        return held[0] if held and None not in held else None

    def mentions(self, names: Collection[str]) -> bool:
        """Whether it speaks of one of these names; of no names, always."""
        texts = (self.says, *self.asks, *(f"{a.do} {a.code}" for a in self.actions))
        spoken = " ".join(texts).lower()
        return not names or any(name.lower() in spoken for name in names)

    def wordings(self, verdict: str) -> tuple[str, ...]:
        """The wordings of its question to which this verdict is given."""
        return tuple(a for a in self.asks if self.own.get(a, self.verdict) == verdict)


class Claims:
    """Claims by their numbers, in the order of their files. One is unpacked when it is first asked for: a question needs some dozen of them."""

    def __init__(self, rows: list[bytes]) -> None:
        self._rows = rows
        self._made: dict[int, Claim] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, n: int) -> Claim:
        if n not in self._made:
            self._made[n] = _unpacked(marshal.loads(self._rows[n]))
        return self._made[n]

    def __iter__(self) -> Iterator[Claim]:
        return map(self.__getitem__, range(len(self)))


@cache
def claims() -> Claims:
    """All claims."""
    return Claims(kept("claims", lambda: _packed(_HOME / "claims")))


@cache
def points() -> Claims:
    """What pasted code does at a place that people ask about."""
    return Claims(kept("points", lambda: _packed(_HOME / "points")))


def _packed(folder: Path) -> list[bytes]:
    """The claims as plain data: to read them from that takes a tenth of the time."""
    return [marshal.dumps([_plain(getattr(c, f.name)) for f in fields(c)]) for c in _of(folder)]


def _plain(value: Any) -> Any:
    if isinstance(value, Condition):
        return value.text
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Action):
        return [_plain(getattr(value, f.name)) for f in fields(value)]
    return value


def _unpacked(row: list[Any]) -> Claim:
    claim = Claim(*row)
    claim.when, claim.never, claim.asked = map(_condition, (claim.when, claim.never, claim.asked))
    claim.actions = [_action(Action(*one)) for one in row[-1]]
    return claim


def _action(action: Action) -> Action:
    action.unless, action.only = _condition(action.unless), _condition(action.only)
    return action


def _condition(text: Any) -> Condition | None:
    return None if text is None else Condition(text)


def _of(folder: Path) -> tuple[Claim, ...]:
    found: list[Claim] = []
    for path in sorted(folder.glob("*.md")):
        found += _Page(path.read_text(encoding="utf-8")).claims
    return tuple(found)


class _Page:
    """One file, read line by line."""

    def __init__(self, text: str) -> None:
        self.claims: list[Claim] = []
        self.specialist = ""
        self.fenced: list[str] | None = None
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self._line(line)
            except (IndexError, ValueError) as error:
                raise ValueError(f"line {number} of a file of claims: {line!r}: {error}") from None

    def _line(self, line: str) -> None:
        bare = line.strip()
        if self.fenced is not None:
            self._in_code(line, bare)
        elif bare.startswith("```"):
            self.fenced = []
            if bare == "```bash":
                self.claims[-1].actions[-1].proof["bash"] = "yes"
        elif line.startswith("# "):
            self.specialist = bare[2:]
        elif line.startswith("## "):
            self.claims.append(Claim(bare[3:], self.specialist))
        elif line.startswith(">"):
            claim = self.claims[-1]
            claim.says = f"{claim.says} {line[1:].strip()}".strip()
        elif line[:1].isdigit():
            self.claims[-1].actions.append(Action(bare.partition(" ")[2]))
        elif bare and self.claims:
            key, _, value = bare.partition(":")
            (self._of_action if line[0] == " " else self._of_claim)(key, value.strip())

    def _in_code(self, line: str, bare: str) -> None:
        assert self.fenced is not None
        if bare == "```":
            self.claims[-1].actions[-1].code = "\n".join(self.fenced)
            self.fenced = None
        else:
            self.fenced.append(line.removeprefix("   "))

    def _of_action(self, key: str, value: str) -> None:
        action = self.claims[-1].actions[-1]
        match key:
            case "if":
                action.when = value
            case "see":
                action.see = value
            case "unless":
                action.unless = Condition(value)
            case "only":
                action.only = Condition(value)
            case _ if key in _PROOF:
                action.proof[key] = value
            case _:
                raise ValueError(f"an action has no {key!r}")

    def _of_claim(self, key: str, value: str) -> None:
        claim = self.claims[-1]
        match key:
            case "ask":
                claim.asks.append(value)
            case "yes" | "no":
                claim.asks.append(value)
                claim.own[value] = key
            case "message":
                claim.messages.append(value)
            case "reads":
                claim.reads = value
            case "ran":
                claim.ran = tuple(one.strip().lower() for one in value.split("|"))
            case "wraps":
                claim.wraps = value == "yes"
            case "when":
                claim.when = Condition(value)
            case "never":
                claim.never = Condition(value)
            case "rules":
                claim.rules = tuple(value.replace(",", " ").split())
            case "code":
                claim.code = value
            case "sees":
                claim.sees.append(value)
            case "and":
                claim.also.append(value)
            case "without":
                claim.without.append(value)
            case "where":
                claim.where.append(value)
            case "asked":
                claim.asked = Condition(value)
            case "shows":
                claim.shows = _groups(value)
            case "facts":
                claim.facts = _groups(value)
            case "plain":
                claim.plain = value
            case "explains":
                claim.explains = tuple(value.replace(",", " ").split())
            case "weak":
                claim.weak = value == "yes"
            case "verdict":
                claim.verdict, _, turning = (v.strip() for v in value.partition(","))
                claim.turns = turning == "turns"
            case "clarify":
                claim.clarify = value
            case "border":
                claim.border = value == "yes"
            case "backs":
                claim.backs = tuple(value.replace(",", " ").split())
            case _:
                raise ValueError(f"a claim has no {key!r}")


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    """Names in groups: & between those that are all needed, | between those of which one is."""
    groups = (group.split("|") for group in text.split("&"))
    return tuple(tuple(name.strip() for name in group) for group in groups)

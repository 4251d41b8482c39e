"""The words of each specialist (words.toml), found in a question: which specialist they point to, and whether it is ours.

Matching is on whole words, without regular expressions: a thousand of those would take longer to compile than the
question takes to answer. A word that is one slip of the finger away from one we know counts as that word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fallline.triage.kept import kept, tables

__all__ = [
    "Phrase",
    "Said",
    "familiar",
    "foreign",
    "holds",
    "other_framework",
    "phrases",
    "pointers",
    "root",
    "scope",
    "spelled",
    "tokens",
    "tokens_each",
    "vague",
]

_HOME = Path(__file__).parent / "words.toml"
_TOKEN = re.compile(r"\d+\.\d+|[a-z0-9à-ÿ]+\+*|[\u3040-\u9fff]+")  # 0.80 holds no 0
_GREEK = str.maketrans(
    {"λ": "lambda", "α": "alpha", "β": "beta", "γ": "gamma", "ε": "eps", "μ": "mu", "σ": "sigma"}
)
_EAST_ASIAN = "\u3040"  # where the letters of languages begin that write no spaces
_UNIT = re.compile(r"(\d)(gi?b|mi?b|ms)\b")  # 8gb is 8 gb
# however it is said that something does not happen: isn't learning, stopped improving, refuses to go down
_CONTRACTED = re.compile(
    r"\b(is|are|was|were|do|does|did|has|have|had|wo|ca|could|would|should)n['’]?t\b"
)
_NOT = re.compile(
    r"\b(?:cannot|never|no longer|barely|hardly|(?:refus|fail)(?:s|es|ed|ing)? to|stop(?:s|ped)?(?= \w+ing\b))(?=\s|$)"
)
_SAYS_NOT = frozenset({"cannot", "never", "barely", "hardly"})
_TIERS = {"names": 1.5, "signs": 1.0, "hints": 0.4}
_SCOPE = {"ours": 1.0, "partly": 0.5, "elsewhere": -1.5}
_MARK = "0textends0"  # between texts that are read in one go; nobody writes it
_BETWEEN = f" \n{_MARK}\n "
_GAP = 6  # words that ` ... ` may leave out, and one
_SHORTEST = 6  # shorter words are not corrected: too many neighbours
_NAMED = 1.5  # a specialist is named by one name, or by two signs
_STRANGE = 0.5  # a question with fewer known words than this share is not ours
_TORCH = frozenset(
    "torch pytorch lightning timm torchvision torchaudio ddp fsdp fsdp2 peft".split()
)
_TRAINED = frozenset("epoch epochs learning lr forward backward autograd train training trained trainer model models network networks gpu gpus cuda nccl loss losses gradient gradients grad tensor tensors finetune finetuning checkpoint checkpoints dataloader optimizer".split())  # fmt: skip
# another framework as what something is compared with or taken from
_COMPARED = re.compile(
    r"(?i)\b(?:following|like|unlike|as in|than|compared (?:to|with)|ported from) (?:in )?(?:the )?(?:tensorflow|tf|keras|jax|flax|optax)\b"
)
_NN = re.compile(r"\bnn\.[A-Z]")
_OTHER_CODE = re.compile(
    r"```[^\S\n]*(?:javascript|jsx?|tsx?|typescript|java|php|sql|html|css|ruby|swift|kotlin|r|julia)\b",
    re.I,
)
_KERAS_LOG = re.compile(r"\[=+>?\.*\] - (?:ETA: )?\d+s\b.* - (?:val_)?loss: ")
# a complaint that names nothing: what is missing is the question, not that it is ours
_COMPLAINT = frozenset("it this that thing my the a i is am are was does do did not no any work works working run runs running help me please pls broken fail fails failed wrong bad stuck error errors problem issue bug why what how to fix get got going go something anything still just help can you code script train training model again now at all look looks right correct ok okay fine good have idea know since crash crashes crashed crashing keeps".split())  # fmt: skip
_YIELDING = 0.75  # what is left of a specialist's words beside the one it yields to


# a term as words (one that ends in `*` is a beginning, and `...` is a gap), its group, and its weight there
_Term = tuple[tuple[str, ...], str, float]


class Phrase(NamedTuple):
    """Words that stand beside each other in a question; `clip*` is a beginning, ` ... ` a gap."""

    spellings: tuple[tuple[str, ...], ...]

    def found_in(self, words: Said) -> bool:
        for parts in self.spellings:  # hot, and nearly always at its end here: no generator
            if words.may_hold(parts[0]) and any(
                _match(parts, words, at) is not None
                for at, word in enumerate(words)
                if _fits(parts[0], word)
            ):
                return True
        return False


class Said(list[str]):
    """The words of a question, and what they begin with: hundreds of phrases are looked for in it, and nearly all are not there."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__(words)
        self._whole = {*self, *map(root, self)}
        self._begun = {word[:n] for word in self for n in range(1, len(word) + 1)}
        self._known: dict[str, bool] = {}

    def may_hold(self, part: str) -> bool:
        """Whether a word here fits this part of a phrase: asked again for every phrase that begins so."""
        known = self._known.get(part)
        if known is None:
            if part.endswith("*"):
                known = part[:-1] in self._begun
            else:
                known = part in self._whole or _key(part) in self._whole
            self._known[part] = known
        return known


def phrases(text: str) -> Phrase:
    """A phrase as it is written in a condition."""
    found = _spellings(_parts(text))
    if not found:
        raise ValueError(f"no words in {text!r}")
    return Phrase(tuple(found))


class _Lexicon(NamedTuple):
    exact: dict[str, tuple[_Term, ...]]  # by their first word
    begun: dict[str, tuple[_Term, ...]]  # by the first letter of a first word that is a beginning
    known: dict[str, frozenset[str]]  # words by their first letter, for spelling
    ours: frozenset[str]  # words of any term that is not elsewhere's
    beginnings: tuple[str, ...]  # and what such words begin with
    neutral: frozenset[str]  # words that everybody uses of everything
    frameworks: frozenset[str]  # names of other frameworks
    tools: frozenset[str]  # and of languages and tools
    yields: dict[str, tuple[str, ...]]  # to whom a specialist leaves a question that names both


def tokens(text: str) -> list[str]:
    """The words of a text in lower case, its negations all as `not`; East Asian runs, which have no spaces, in overlapping pairs."""
    # one plain word, as nearly all words of conditions are: nothing in it can be rewritten
    if (
        text.isascii()
        and text.isalpha()
        and text.islower()
        and text not in _SAYS_NOT
        and text[-2:] != "nt"
    ):
        return [text]
    found: list[str] = []
    plain = text.lower()
    if not plain.isascii():
        plain = plain.translate(_GREEK)
    plain = _NOT.sub("not", _CONTRACTED.sub(r"\1 not", plain))
    for word in _TOKEN.findall(_UNIT.sub(r"\1 \2", plain)):
        if word[0] >= _EAST_ASIAN:
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        else:
            found.append(word)
    return found


def tokens_each(texts: Iterable[str]) -> list[list[str]]:
    """The words of many texts, found in one go: a thousand calls would take longer than the words."""
    found: list[list[str]] = [[]]
    for word in tokens(_BETWEEN.join(texts)):
        if word == _MARK:
            found.append([])
        else:
            found[-1].append(word)
    return found


@cache
def _lexicon() -> _Lexicon:
    return _Lexicon(*kept("words", _read))


def _read() -> tuple[Any, ...]:
    """The lexicon as plain data."""
    raw: dict[str, dict[str, list[str]]] = tables([_HOME])[0]
    terms = [
        (parts, group, weight)
        for group, lists in raw.items()
        for tier, weight in (_SCOPE if group == "scope" else _TIERS).items()
        for phrase in lists[tier]
        for parts in _spellings(_parts(phrase))
    ]
    exact: dict[str, list[_Term]] = {}
    begun: dict[str, list[_Term]] = {}
    known: dict[str, set[str]] = {}
    ours = {part for parts, _, weight in terms if weight > 0 for part in parts}
    for term in terms:
        parts, _, weight = term
        first = parts[0]
        where, key = (begun, first[0]) if first.endswith("*") else (exact, _key(first))
        where.setdefault(key, []).append(term)
        for part in parts:
            # nothing is corrected into a word of elsewhere: policy is not police
            if part != "..." and weight > 0:
                known.setdefault(part[0], set()).add(part)
    return (
        _frozen(exact),
        _frozen(begun),
        {k: frozenset(v) for k, v in known.items()},
        frozenset(map(root, ours)) | frozenset(map(root, raw["scope"]["trade"])),
        # two letters begin too much
        tuple(p[:-1] for p in sorted(ours) if p.endswith("*") and len(p) > 3),
        frozenset(raw["scope"]["neutral"]),
        frozenset(raw["scope"]["frameworks"]),
        frozenset(raw["scope"]["tools"]),
        {group: tuple(lists["yields_to"]) for group, lists in raw.items() if "yields_to" in lists},
    )


@cache
def root(word: str) -> str:
    """A word without its English ending, so that `decayed` is `decay` and `biases` is `bias`. Only for comparing: it need not be a word."""
    if len(word) < 5 or word.endswith("*"):
        return word
    for ending, shortest in (("ing", 7), ("ed", 6), ("ies", 6), ("s", 5)):
        if word.endswith(ending) and len(word) >= shortest:
            if ending == "s" and word[-2] in "suia":
                break
            word = word.removesuffix(ending) + ("y" if ending == "ies" else "")
            if ending in ("ing", "ed") and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]  # clipping, clipped
            break
    return word.removesuffix("e") if len(word) > 4 else word


def _frozen(found: dict[str, list[_Term]]) -> dict[str, tuple[_Term, ...]]:
    return {key: tuple(terms) for key, terms in found.items()}


def _parts(phrase: str) -> tuple[str, ...]:
    parts: list[str] = []
    for chunk in phrase.split():
        if chunk == "...":
            parts.append("...")
            continue
        parts += _chunk(chunk)
    return tuple(parts)


@cache
def _chunk(chunk: str) -> list[str]:
    """The words of one that is written without a space; the same few thousand are in all conditions."""
    words = tokens(chunk)
    if chunk.endswith("*") and words:
        words[-1] += "*"
    return words


def _spellings(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A term, and two words also as one: layer norm, layernorm."""
    # of two short ones another word would come out: s/it, sit
    if len(parts) == 2 and min(map(len, parts)) > 3 and not parts[0].endswith("*"):
        return [parts, ("".join(parts),)]
    return [parts] if parts else []


def _fits(part: str, word: str) -> bool:
    if part.endswith("*"):
        return word.startswith(part[:-1])
    return word == part or root(word) == _key(part)


def _key(part: str) -> str:
    """A term covers its inflections; one that is given in the plural means the plural (cards are ours, a card is anything)."""
    return part if part.endswith("s") else root(part)


def _match(parts: tuple[str, ...], words: list[str], at: int) -> tuple[int, ...] | None:
    """The places of the words that a term takes when it begins at `at`."""
    taken: list[int] = []
    for n, part in enumerate(parts):
        if part == "...":
            for there in range(at, min(at + _GAP, len(words))):
                rest = _match(parts[n + 1 :], words, there)
                if rest is not None:
                    return (*taken, *rest)
            return None
        if at >= len(words) or not _fits(part, words[at]):
            return None
        taken.append(at)
        at += 1
    return tuple(taken)


def _found(
    words: list[str], scope_only: bool, elsewhere: bool = False
) -> tuple[dict[str, float], dict[str, set[str]]]:
    """The weight of each group, and its words: each counts once, in the weightiest and longest term that has it."""
    lexicon = _lexicon()
    hits: list[tuple[_Term, tuple[int, ...]]] = []
    for at, word in enumerate(words):
        alike = [term for key in {word, root(word)} for term in lexicon.exact.get(key, ())]
        for term in (*alike, *lexicon.begun.get(word[:1], ())):
            if (term[1] == "scope") is scope_only and (term[2] < 0 or not elsewhere):
                places = _match(term[0], words, at)
                if places is not None:
                    hits.append((term, places))
    hits.sort(key=lambda h: (-abs(h[0][2]), -len(h[1])))
    used: dict[str, set[str]] = {}
    total: dict[str, float] = {}
    # the words of a longer term belong to who has it: a gradient reversal is not a question about gradients
    taken = {p: t[1] for t, ps in hits if len(ps) > 1 and max(ps) - min(ps) < len(ps) for p in ps}
    for (_, group, weight), places in hits:
        if len(places) == 1 and taken.get(places[0], group) != group:
            continue
        mine = used.setdefault(group, set())
        here = {words[p] for p in places}
        if not here <= mine:
            mine |= here
            total[group] = total.get(group, 0.0) + weight
    return total, used


def spelled(words: list[str]) -> Said:
    """The words, with those that are one slip of the finger away from one we know put right."""
    known = _lexicon().known
    return Said(_nearest(w, known.get(w[0], frozenset())) for w in words)


def _nearest(word: str, known: frozenset[str]) -> str:
    if len(word) < _SHORTEST or word in known:
        return word
    long = sorted(k for k in known if len(k) >= _SHORTEST)
    if any(k.endswith("*") and word.startswith(k[:-1]) for k in long):
        return word
    # the beginning of a stem is a word of its own, not a slip: initial, and initiali*
    stems = (k for k in map(_stem, long) if not k.startswith(word))
    return next((k for k in stems if _one_slip(word, k)), word)


def _stem(part: str) -> str:
    return part.removesuffix("*")


def _one_slip(one: str, two: str) -> bool:
    """Whether one letter more, less, other, or two swapped, makes the words equal."""
    if abs(len(one) - len(two)) > 1:
        return False
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    a, b = one[start:], two[start:]
    return (
        a[1:] == b
        or a == b[1:]
        or a[1:] == b[1:]
        or (len(a) > 1 and len(b) > 1 and a[:2] == b[1::-1] and a[2:] == b[2:])
    )


def pointers(text: str) -> dict[str, float]:
    """How much the words of a question point to each specialist.

    A clip, a norm or a NaN beside `GradScaler` is a question about the scaler: who yields keeps a part of its words.
    """
    total = _found(spelled(tokens(text)), scope_only=False)[0]
    named = {who for who, weight in total.items() if weight >= _NAMED}
    return {
        who: weight * _YIELDING if named.intersection(_lexicon().yields.get(who, ())) else weight
        for who, weight in total.items()
    }


def scope(text: str) -> float:
    """How much a question is about PyTorch training: 1 and more is, 0 and less is not.

    One everyday word (`training`) is half of it; another word that points to a specialist (`faster`) is the other half.
    """
    words = spelled(tokens(text))
    total, used = _found(words, scope_only=True)
    about = total.get("scope", 0.0)
    if 0.0 < about < 1.0:
        rest = ["" if w in used["scope"] else w for w in words]
        others = _found(rest, scope_only=False)[0]
        about += 0.5 if max(others.values(), default=0.0) >= 1.0 else 0.0
    return about


def foreign(text: str) -> bool:
    """Whether a question names something that is certainly not PyTorch training, or mostly uses words that are strange here."""
    words = spelled(tokens(text))
    if _found(words, scope_only=True, elsewhere=True)[0]:
        return True
    telling = [w for w in set(words) if len(w) > 2 and not w[0].isdigit()]
    known = [ours for w in telling if (ours := familiar(w)) is not None]
    return bool(known) and sum(known) < _STRANGE * len(known)


def vague(words: list[str]) -> bool:
    """Whether a question is only a complaint: it doesn't work."""
    return bool(words) and _COMPLAINT.issuperset(words)


def other_framework(text: str) -> bool:
    """Whether a question is about another framework: it names one, and not torch; or about another tool: it names one, and nothing that is trained."""
    words = frozenset(tokens(_COMPARED.sub(" ", text)))
    named = bool(words & _lexicon().frameworks) or _OTHER_CODE.search(text) is not None
    named = named or _KERAS_LOG.search(text) is not None
    named = named or (bool(words & _lexicon().tools) and words.isdisjoint(_TRAINED))
    return named and not words & _TORCH and _NN.search(text) is None


def holds(words: frozenset[str], wanted: str) -> bool:
    """Whether one of the words is the wanted one, or begins like it where it ends in `*`."""
    if wanted.endswith("*"):
        return any(word.startswith(wanted[:-1]) for word in words)
    return wanted in words


def familiar(word: str) -> bool | None:
    """Whether a word is anywhere in what is ours, or begins like one that does.

    None for a word that says neither: everybody uses it of everything, or it is a piece of a language without spaces.
    """
    lexicon = _lexicon()
    if root(word) in lexicon.ours or word.startswith(lexicon.beginnings):
        return True
    return None if word in lexicon.neutral or word[0] >= _EAST_ASIAN else False

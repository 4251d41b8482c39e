"""What the numbers in a question show: a loss at chance, NaN from some step on, a validation loss that turns, memory that grows. Words are often missing where numbers are pasted.

A fact has a name that claims use (`shows: loss at chance`) and a sentence for the answer, with the numbers of this log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from fallline.triage.logs import Column, columns

__all__ = ["shown", "trends"]

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_NEXT = r"\s*(?:,|;|/|-+>|=>|→|\bto\b|\bthen\b|\band\b|\.\.+)+\s*"
_WORTH = 1.1  # a series moves when its ends differ by a tenth
_SPIKE = 1000.0  # times the usual norm
_WORDS = {"loss": r"\w*loss(?:es)?", "norm": r"\w*norms?"}  # also train_loss, grad_norm, gnorm
_EXPLODES = 100.0  # times its beginning: no loss wanders that far by itself
_FLAT = 0.03  # of its mean: a spread that is only noise
_CLASSES = (*range(2, 13), 20, 50, 100, 200, 1000)
_AT_CHANCE = 0.006  # of the loss: how near it must be to the logarithm of the number of classes
_SWINGS = 1.15  # times the smallest value: more than noise around a plateau
_SHARE = 0.02  # likewise, of the accuracy
_STUCK_SHARE = re.compile(
    r"(?i)\bacc(?:uracy)?\b[^.\n]{0,40}\b(?:stuck|stays?|remain\w*|constant\w*|always|fixed|not (?:change|increas|improv)\w*)\b[^.\n\d]{0,30}?(?P<value>0\.\d+|\d\d(?:\.\d+)?(?= ?%))"
)
_STUCK = re.compile(
    r"(?i)\bloss\b[^.\n]{0,60}\b(?:stuck|stays?|stay(?:ed|ing)|remain\w*|constant\w*|always|fixed|plateaus?|stagnat\w*|saturat\w*|not (?:change|decreas)\w*|doesn't (?:change|decrease))\b[^.\n\d]{0,40}?(?P<value>\d+\.\d{2,})"
)
_SIZE = re.compile(r"(?i)(?<![\w.])(\d+(?:[.,]\d+)?) ?(MiB|MB|GiB|GB|G|M)\b")
_GREW = re.compile(r"(?i)\b(?:increas|grow|rise|rising|climb|jump)\w*")
_CREEPS = (
    1.3  # times its beginning: memory that reaches this little more is that of the largest batch
)
_GROWS = re.compile(r"(?i)(?<![a-z])mem(?:ory)?\b|\bram\b")


def trends(text: str) -> frozenset[str]:
    """Any of `loss falls`, `loss rises`, `norm falls`, `norm rises`."""
    found = set()
    for name, word in _WORDS.items():
        for series in _series(text, word):
            pairs = list(pairwise(series))
            low, high = min(series), max(series)
            if low <= 0 or high < _WORTH * low:
                continue
            if all(a > b for a, b in pairs):
                found.add(f"{name} falls")
            elif all(a < b for a, b in pairs):
                found.add(f"{name} rises")
    return frozenset(found)


def _series(text: str, word: str) -> list[list[float]]:
    """The lists of numbers after a word, and the numbers that follow it one by one, as in a log of at least three lines."""
    # a word may be named once for a list, or before each number; what is between is short and holds no number
    pattern = rf"(?i)\b{word}\b[^\d\n]{{0,24}}?({_NUMBER}(?:{_NEXT}{_NUMBER})*)"
    lists = [
        [float(n) for n in re.findall(f"(?i){_NUMBER}", match[1])]
        for match in re.finditer(pattern, text)
    ]
    log = [numbers[0] for numbers in lists]
    return [*(numbers for numbers in lists if len(numbers) > 1), *([log] if len(log) > 2 else [])]


@lru_cache(maxsize=8)
def shown(text: str) -> dict[str, str]:
    """The facts that the numbers of a question show, the gravest first, each with a sentence that says so."""
    logged = columns(text)
    loss = _main([c for c in logged if c.kind == "loss" and not c.validation])
    facts: dict[str, str] = {}
    for fact, says in (
        *_of_loss(loss),
        *_of_score([c for c in logged if c.kind == "score"]),
        *_of_norm(_main([c for c in logged if c.kind == "norm"])),
        *_of_settings(logged),
        *_of_validation(logged, loss),
        *_of_course(loss),
        *_in_words(text),
    ):
        facts.setdefault(fact, says)
    if "loss nan" in facts or "loss diverged" in facts:
        facts.pop("norm nan sometimes", None)  # no scale that looks for its size: it stays
    if "loss at chance" in facts:
        facts.pop("loss flat", None)  # the same fact, and less of it
    return facts


def _main(found: list[Column]) -> Column | None:
    """The column that stands for its kind: the one that is first not finite, else the total where there are parts."""
    bad = [c for c in found if 0 < len(c.finite) < len(c.values)]
    if bad:
        first = min(_first_bad(c) for c in bad)
        found = [c for c in bad if _first_bad(c) == first]
    plain = [
        c
        for c in found
        if re.fullmatch(r"(?:train\w*[ _])?(?:total_?)?loss(?:es)?(?:_total)?|cost", c.name)
    ]
    return next(iter(plain or found), None)


def _first_bad(column: Column) -> int:
    return next(
        (n for n, v in enumerate(column.values) if not math.isfinite(v)), len(column.values)
    )


def _of_loss(loss: Column | None) -> Iterator[tuple[str, str]]:
    """What is wrong with a training loss whatever its course is."""
    if loss is None:
        return
    bad = [n for n, v in enumerate(loss.values) if not math.isfinite(v)]
    if len(bad) == len(loss.values):
        yield (
            "loss nan",
            "In your log the loss is NaN in every line, so the first NaN is from before it.",
        )
        yield "loss nan always", ""
    elif bad and bad[0] > 0:
        last, at = loss.values[bad[0] - 1], loss.at[bad[0]]
        since = f"from {at} on" if at else f"from value {bad[0] + 1} on"
        grew = bad[0] > 1 and last > 2 * abs(loss.values[0])
        course = (
            f"it had grown from {_n(loss.values[0])} to {_n(last)}"
            if grew
            else f"the value before is an ordinary {_n(last)}"
        )
        exploded = grew and last > _EXPLODES * abs(loss.values[0])
        says = f"In your log the loss is NaN {since}; {course}."
        yield ("loss diverged" if exploded else "loss nan"), says
        yield ("loss nan after growth" if grew else "loss nan at once"), ""
    elif sum(v == 0.0 for v in loss.values) >= 0.8 * len(loss.values):
        yield "loss zero", "In your log the loss is exactly 0."
    elif (k := _chance(loss.values[-max(3, len(loss.values) // 2) :])) is not None:
        yield "loss at chance", _guessing(sum(loss.values[-3:]) / 3, k)


def _guessing(value: float, classes: int) -> str:
    return f"A loss of {_n(value)} that stays is ln {classes}, what guessing among {classes} classes costs: nothing has been learned yet."


def _chance(values: list[float]) -> int | None:
    """The number of classes whose chance level a flat loss is at."""
    if not _flat(values):
        return None
    mean = sum(values) / len(values)
    return next((k for k in _CLASSES if abs(mean - math.log(k)) < _AT_CHANCE * math.log(k)), None)


def _of_score(scores: list[Column]) -> Iterator[tuple[str, str]]:
    """An accuracy that stays where guessing is."""
    for column in scores:
        named = column.name.rpartition("_")[2].startswith("acc")
        if named and len(column.finite) > 2 and (says := _share_guessed(column.finite)):
            yield "loss at chance", says


def _share_guessed(values: list[float]) -> str:
    mean = sum(values) / len(values)
    share = mean / 100 if mean > 1 else mean
    if share <= 0 or max(values) - min(values) > _FLAT * mean:
        return ""
    classes = round(1 / share)
    if classes not in _CLASSES or abs(share * classes - 1) > _SHARE:
        return ""
    return f"An accuracy that stays at {_n(mean)} is 1/{classes}, what guessing among {classes} classes gives: nothing has been learned yet."


def _flat(values: list[float]) -> bool:
    mean = sum(values) / len(values)
    return all(map(math.isfinite, values)) and max(values) - min(values) < _FLAT * abs(mean)


def _of_norm(norm: Column | None) -> Iterator[tuple[str, str]]:
    if norm is None:
        return
    bad = sum(not math.isfinite(v) for v in norm.values)
    if bad == len(norm.values):
        yield "norm nan always", "In your log the gradient norm is NaN in every line."
    elif bad:
        at = norm.at[_first_bad(norm)]
        since = f", first at {at}" if at else ""
        says = f"In your log the gradient norm is not finite in {bad} of {len(norm.values)} lines{since}."
        yield "norm nan sometimes", says
    elif any(not math.isfinite(v) for v in norm.beside):
        yield (
            "norm nan sometimes",
            "In your log only the running mean of the gradient norm is inf: a single update of the past had an infinite norm, and the mean never forgets it; the norms themselves are finite.",
        )
    elif all(v == 0.0 for v in norm.values):
        yield (
            "norm zero",
            "In your log the gradient norm is 0 in every line: no gradient reaches the weights.",
        )
    elif (
        len(norm.values) > 1
        and max(norm.values) > _SPIKE * sorted(norm.values)[len(norm.values) // 2 - 1]
    ):
        yield (
            "norm spikes",
            f"In your log the gradient norm jumps to {max(norm.values):.3g}, from {min(norm.values):.3g}.",
        )


def _of_settings(logged: list[Column]) -> Iterator[tuple[str, str]]:
    """What a rate, a loss scale and the memory do."""
    for column in logged:
        values = column.finite
        if not values:
            continue
        if column.kind == "rate" and "min" not in column.name and not any(values):
            yield (
                "rate zero",
                "In your log the learning rate is 0 in every line, so the weights do not move.",
            )
        elif (
            column.kind == "scale"
            and values[-1] < 1.0
            and "loss" not in column.name.replace("loss_scale", "")
        ):
            yield "scale zero", f"In your log the loss scale has fallen to {_n(values[-1])}."
        elif column.kind == "memory" and _rises(values):
            creeps = values[-1] < _CREEPS * values[0]
            yield (
                ("memory creeps" if creeps else "memory grows"),
                f"In your log the memory grows from {values[0]:,.0f} to {values[-1]:,.0f} MB.",
            )


def _of_validation(logged: list[Column], loss: Column | None) -> Iterator[tuple[str, str]]:
    """What the validation loss does, beside the training loss and the score."""
    val = next((c for c in logged if c.kind == "loss" and c.validation and len(c.finite) > 2), None)
    if val is None:
        return
    values = val.finite
    low = values.index(min(values))
    if not (low < len(values) - 1 and values[-1] > _WORTH * min(values) and _rises(values[low:])):
        yield from ((("val loss falls", ""),) if _falls(values) else ())
        return
    score = next(
        (c.finite for c in logged if c.kind == "score" and c.validation and len(c.finite) > 2), []
    )
    better = bool(score) and score[-1] >= max(score[: low + 1]) and max(score) > min(score)
    at = f" ({val.at[low]})" if val.at[low] else ""
    course = (
        "rises from the start" if low == 0 else f"is lowest at {_n(min(values))}{at} and then rises"
    )
    says = f"In your log the validation loss {course}, to {_n(values[-1])}"
    if loss is not None and len(loss.finite) > 2 and _falls(loss.finite):
        says += ", while the training loss falls"
        yield "val loss turns", f"{says}, and the score still rises." if better else f"{says}."
    if better:
        yield "val score rises beside its loss", f"{says}, and the score still rises."
    yield "val loss rises", f"{says}."


def _of_course(loss: Column | None) -> Iterator[tuple[str, str]]:
    """The course of a loss that is finite throughout: flat, rising, falling."""
    values = loss.finite if loss is not None else []
    if len(values) < 3 or loss is None or len(values) < len(loss.values):
        return
    first, last = values[0], values[-1]
    if _flat(values):
        yield (
            "loss flat",
            f"In your log the loss stays at {_n(sum(values) / len(values))} in all {len(values)} lines.",
        )
    elif _falls(values):
        yield "loss falls", f"In your log the loss falls from {_n(first)} to {_n(last)}."
    elif _rises(values):
        exploded = "diverged" if last > _EXPLODES * abs(first) else "rises"
        yield f"loss {exploded}", f"In your log the loss rises from {_n(first)} to {_n(last)}."
    elif max(values) > _SWINGS * min(values) > 0 and len(values) > 4:
        yield (
            "loss swings",
            f"In your log the loss swings between {_n(min(values))} and {_n(max(values))} without a trend.",
        )


def _in_words(text: str) -> Iterator[tuple[str, str]]:
    """A loss that is said to stay at a number, and sizes of memory that are named one after the other."""
    for match in _STUCK.finditer(text):
        if (k := _chance([float(match["value"])])) is not None:
            yield "loss at chance", _guessing(float(match["value"]), k)
    for match in _STUCK_SHARE.finditer(text):
        if says := _share_guessed([float(match["value"])]):
            yield "loss at chance", says
    sizes: list[float] = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n", text):
        if _GROWS.search(sentence) and "tried to allocate" not in sentence.lower():
            sizes += [
                float(n.replace(",", ".")) * (1024 if unit[:1] in "gG" else 1)
                for n, unit in _SIZE.findall(sentence)
            ]
    if len(sizes) > 1 and all(a < b for a, b in pairwise(sizes)) and _GREW.search(text):
        creeps = sizes[-1] < _CREEPS * sizes[0]
        if creeps or len(sizes) > 2:
            says = f"By your numbers the memory grows from {sizes[0]:,.0f} to {sizes[-1]:,.0f} MB."
            yield ("memory creeps" if creeps else "memory grows"), says


def _ends(values: list[float]) -> tuple[float, float]:
    """The means of the first and of the last third."""
    n = max(1, len(values) // 3)
    return sum(values[:n]) / n, sum(values[-n:]) / n


def _moves(values: list[float]) -> float:
    """How far a series gets from its beginning to its end; nothing where its steps up and down are larger."""
    first, last = _ends(values)
    steps = [abs(a - b) for a, b in pairwise(values)]
    moved, noise = last - first, sum(steps) / len(steps) * max(1.5, 0.6 * math.sqrt(len(values)))
    worth = abs(moved) > (_WORTH - 1) * abs(first) and abs(moved) > noise
    return moved if worth else 0.0


def _falls(values: list[float]) -> bool:
    return values[-1] < values[0] and _moves(values) < 0


def _rises(values: list[float]) -> bool:
    return values[-1] > values[0] and _moves(values) > 0


def _n(value: float) -> str:
    return f"{value:.3g}"

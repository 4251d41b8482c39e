"""What the tokens of the first batches are taught: ends, beginnings, padding, prompts, nothing at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fallline.lessons.lesson import IGNORED, Lesson, Observation, note
from fallline.lessons.words import Words

__all__ = ["Row", "rows_of", "text_observations"]

_NOTICEABLE = 0.1  # of the samples
_MOST = 0.5
_FEW_ROWS = 2
# what only the texts of an instruction run hold: the roles of chat templates, and the headings of Alpaca and its kin
_ASKED = re.compile(
    r"<\|im_start\|>\s*user|<\|start_header_id\|>\s*user|\[INST\]|<start_of_turn>\s*user|<\|user\|>|<\|turn>\s*user|<｜User｜>|<\|USER_TOKEN\|>|"
    r"###\s*(Instruction|Human|User|Question)\b|(^|\n)\s*(USER|Human|User|Question|Q):"
)
_ANSWERED = re.compile(
    r"<\|im_start\|>\s*assistant|<\|start_header_id\|>\s*assistant|\[/INST\]|<start_of_turn>\s*model|<\|assistant\|>|<\|turn>\s*model|<｜Assistant｜>|<\|CHATBOT_TOKEN\|>|"
    r"###\s*(Response|Assistant|Answer)\b|(^|\n)\s*(ASSISTANT|Assistant|Answer|A):"
)


@dataclass(slots=True)
class Row:
    """One sample."""

    lesson: Lesson
    ids: Tensor
    real: Tensor
    learned: Tensor  # which tokens are targets

    @property
    def none(self) -> bool:
        return not bool(self.learned.any())

    @property
    def full(self) -> bool:
        """No padding at its end: it may have been cut."""
        return bool(self.real[-1])

    @property
    def tokens(self) -> Tensor:
        return self.ids[self.real]


def rows_of(lessons: Sequence[Lesson]) -> list[Row]:
    """The samples of the lessons that are about tokens and have labels."""
    found = []
    for lesson in lessons:
        if lesson.ids is None or lesson.labels is None:
            continue
        length = lesson.ids.shape[1]
        shift = lesson.shift or 0
        for ids, real, labels in lesson.rows():
            assert labels is not None
            learned = labels[:length] != IGNORED
            if lesson.in_place:
                learned = labels[1 : length + 1] != IGNORED
            if shift == 1:  # the label at p is the token at p + 1
                learned = torch.cat([learned.new_zeros(1), learned[:-1]])
            found.append(Row(lesson, ids, real, learned))
    return found


def text_observations(lessons: Sequence[Lesson], words: Words) -> list[Observation]:
    """Everything that the tokens and labels of these lessons show."""
    rows = rows_of(lessons)
    if not rows:
        return []
    fed = rows[0].lesson.at
    compared = next((g.at for x in lessons for g in x.given if g.at is not None), fed)
    of_loss = [_nothing(lessons), _shifted(lessons), _padding(lessons, words) or _divisor(lessons)]
    of_text = [
        _truncated(rows, words),
        _end(rows, words),
        _twice(rows, words),
        _prompt(rows, words),
    ]
    places = ((compared, of_loss), (fed, of_text))
    return [note(code, at, **facts) for at, found in places for code, facts in filter(None, found)]


Found = tuple[str, dict[str, object]] | None


def _nothing(lessons: Sequence[Lesson]) -> Found:
    taught = [lesson for lesson in lessons if lesson.labels is not None]
    empty = [lesson for lesson in taught if not _any(lesson.supervised)]
    if not empty:
        return None
    return "FL011", {"batches": len(taught), "empty": len(empty)}


def _any(mask: Tensor | None) -> bool:
    return mask is not None and bool(mask.any())


def _shifted(lessons: Sequence[Lesson]) -> Found:
    shifts = [lesson.shift for lesson in lessons if lesson.shift is not None]
    for shift in (1, -1):
        wrong = [lesson for lesson in lessons if lesson.shift == shift]
        if wrong and 2 * len(wrong) > len(shifts) and (shift == 1 or wrong[0].causal is not False):
            return "FL012", {"shift": "twice" if shift == 1 else "never", "batches": len(wrong)}
    return None


def _padding(lessons: Sequence[Lesson], words: Words) -> Found:
    """Padding that counts: masked positions with a label, or runs of the padding token where there is no mask."""
    counted = padded = 0
    for lesson in lessons:
        if lesson.ids is None or lesson.labels is None or lesson.shift == 1:
            continue
        filler = _filler(lesson, words)
        if filler is None:
            continue
        place = 1 if lesson.in_place else 0
        labels = lesson.labels[:, place : place + filler.shape[1]]
        # what follows a text once may be its end: only the rest is padding for certain
        later = filler & torch.cat([filler.new_zeros(len(filler), 1), filler[:, :-1]], dim=1)
        sure = later if words.pad is not None and words.pad in words.ends else filler
        wrong = sure & (labels != IGNORED)
        padded, counted = padded + int(sure.sum()), counted + int(wrong.sum())
    if not counted:
        return None
    everything = sum(int((x.labels != IGNORED).sum()) for x in lessons if x.labels is not None)
    return "FL016", {
        "where": "sum",
        "padding": padded,
        "supervised": counted,
        "share": counted / max(everything, 1),
    }


def _divisor(lessons: Sequence[Lesson]) -> Found:
    """A mean over all positions, of which only some count: the factors add up to the share that counts, not to 1."""
    shares = []
    for given in (g for lesson in lessons for g in lesson.given if g.total is not None):
        assert given.weights is not None and given.total is not None
        total = float(given.total)
        share = float((given.weights != 0).double().mean())
        if share in (0.0, 1.0):
            continue
        if abs(total - share) > 0.01 * share:
            return None
        shares.append(share)
    if len(shares) < _FEW_ROWS:
        return None
    return "FL016", {"where": "divisor", "share": sum(shares) / len(shares)}


def _filler(lesson: Lesson, words: Words) -> Tensor | None:
    """Positions that only fill a row up."""
    ids = lesson.ids
    assert ids is not None
    if lesson.attention is not None and not bool(lesson.attention.all()):
        return ~lesson.attention
    if words.pad is None or lesson.positions is not None:
        return None
    same = ids == words.pad
    trailing = same.flip(1).long().cumprod(1).flip(1).bool()
    # one at the end of a text may be its end; a run of them at the end of several rows is padding
    run = trailing & torch.cat([same.new_zeros(len(ids), 1), trailing[:, :-1]], dim=1)
    own = (
        words.pad not in words.ends and words.size is not None
    )  # a tokenizer has it for nothing else
    if own and bool(trailing.any()):
        return trailing
    return run if bool(run.any()) else None


def _truncated(rows: list[Row], words: Words) -> Found:
    """Samples without a single label, because the answer came after the cut."""
    lost = [r for r in rows if r.none and r.full]
    taught = [r for r in rows if not r.none]
    if not taught or len(lost) < _NOTICEABLE * len(rows):
        return None
    longest = max(int(r.real.sum()) for r in rows)
    cut = [r for r in lost if int(r.real.sum()) == longest]
    if not cut:
        return None
    return "FL020", {
        "samples": len(rows),
        "lost": len(lost),
        "share": len(lost) / len(rows),
        "length": longest,
    }


def _end(rows: list[Row], words: Words) -> Found:
    """Ends of texts that no label teaches."""
    if not words.ends or words.eos is None:
        return None
    taught = [r for r in rows if not r.none and not r.lesson.in_place]
    if any(bool((r.learned & _is_end(r.ids, words)).any()) for r in taught):
        return None
    masked = [r for r in taught if _masked_end(r, words)]
    same = words.pad == words.eos
    if masked and len(masked) >= _MOST * len([r for r in taught if _has_end(r, words)]):
        why = "padding" if same else "masked"
        return "FL010", {
            "why": why,
            "token": words.word(words.eos),
            "samples": len(masked),
            "of": len(taught),
        }
    # answers that stop without an end: only where prompts are masked, so that answers are what is taught
    stopped = [r for r in taught if not r.full and _ends_learned(r) and _asks(r)]
    if len(stopped) >= max(_FEW_ROWS, _MOST * len(taught)):
        return "FL010", {
            "why": "absent",
            "token": words.word(words.eos),
            "samples": len(stopped),
            "of": len(taught),
        }
    return None


def _is_end(ids: Tensor, words: Words) -> Tensor:
    return torch.isin(ids, torch.tensor(sorted(words.ends)))


def _has_end(row: Row, words: Words) -> bool:
    return bool((_is_end(row.ids, words) & row.real).any())


def _masked_end(row: Row, words: Words) -> bool:
    """The token after the last one that is learned ends the text, is real, and is not learned."""
    last = int(row.learned.nonzero().max())
    after = last + 1
    if after >= len(row.ids) or int(row.ids[after]) not in words.ends:
        return False
    if row.lesson.attention is None:
        return True
    return bool(row.real[after])


def _ends_learned(row: Row) -> bool:
    """The last real token is learned."""
    last = int(row.real.nonzero().max())
    return bool(row.learned[last])


def _asks(row: Row) -> bool:
    """A prompt that is not learned comes before what is."""
    first = int(row.learned.nonzero().min())
    return int(row.real[:first].sum()) > 1


def _twice(rows: list[Row], words: Words) -> Found:
    if words.bos is None:
        return None
    heads = [
        r.tokens[:2].tolist() for r in rows if int(r.real.sum()) > 2 and not _left_padded(r, words)
    ]
    double = [h for h in heads if h == [words.bos, words.bos]]
    if not double or len(double) < _MOST * len(heads):
        return None
    return "FL014", {"token": words.word(words.bos), "samples": len(double), "of": len(heads)}


def _left_padded(row: Row, words: Words) -> bool:
    return row.lesson.attention is None and words.pad == words.bos


def _prompt(rows: list[Row], words: Words) -> Found:
    """Questions that are learned like answers."""
    if words.tokenizer is None:
        return None
    asked = learned = 0
    for row in rows:
        tokens = row.ids[row.real].tolist()
        text = words.text(tokens)
        ask, answer = _ASKED.search(text), _ANSWERED.search(text)
        if ask is None or answer is None or answer.start() < ask.start():
            continue
        asked += 1
        prompt = row.learned[row.real][: _tokens_before(tokens, words, answer.start())]
        learned += int(prompt[2:].double().mean() > _MOST) if len(prompt) > 2 else 0
    if not asked or learned < _MOST * asked:
        return None
    return "FL013", {"samples": learned, "of": len(rows)}


def _tokens_before(tokens: list[int], words: Words, end: int) -> int:
    length = 0
    for count, token in enumerate(tokens):
        length += len(words.word(token))
        if length >= end:
            return count
    return len(tokens)

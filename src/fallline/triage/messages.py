"""Pasted messages: which claims' messages a text holds, and what the numbers in it say."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["begins", "error_at", "found", "last_error", "readings"]

_HOLE = re.compile(r"\{([^{}]*)\}")
_SPACE = re.compile(r"\s+")
_SIZE = r"([\d.]+) ?(bytes|[KMGT]i?B)"
_UNITS = {"bytes": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_MEMORY = {
    "wanted": re.compile(rf"Tried to allocate {_SIZE}"),
    "total": re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity"),
    "free": re.compile(rf"of which {_SIZE} is free|{_SIZE} free"),
    "process": re.compile(rf"(?:this process|Process) has {_SIZE} memory in use"),
    "allocated": re.compile(
        rf"allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated"
    ),
    "idle": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "reserved": re.compile(rf"{_SIZE} reserved in total by PyTorch"),
}
_UNEXPECTED = re.compile(r"Unexpected key\(s\) in state_dict:\s*([^\n]*)")
# what a file that a run saves holds beside its weights; no module is called that
_SAVED = re.compile(
    r"\"(?:epochs?|global_step|iterations?|optimizers?|optimizer_states?|optimizer_state_dict|lr_schedulers?|scheduler|model_state_dict|state_dict|best_acc\w*|hyper_parameters|opt_\w+)\""
)
_RAISED = re.compile(r"\b((?:\w+\.)*[A-Z]\w*(?:Error|Exception): ?[^\s\"'`][^\n]{7,199})")
# a tensor that changed in place and that no operation made is a weight; so is the transpose that a linear layer uses
_CHANGED = re.compile(
    r"modified by an inplace operation: \[[^\n]*?\]\],? (?:which is output \d+ of (\w+), )?is at version"
)
_TURNED = re.compile(r"(?:T|AsStrided)(?:Backward\d?)?$")
_SIZES = re.compile(
    r"[Ss]ize of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)(?: at non-singleton dimension (\d+))?|Expected size (\d+) but got size (\d+)"
)
_NEARLY = 2  # sizes that differ by no more come from rounding, not from another tensor
_LARGE = 6
_POSITIONS = frozenset(
    {77, 128, 256, 384, 512, 514, 1024, 1026, 2048, 4096}
)  # the lengths that models of text are made for
_IN_PLACE = "needed for gradient computation has been modified by"
_DDP = re.compile(r"\bDDP\b|DistributedDataParallel")
_ENOUGH = 45  # characters that know a message by its beginning
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_FRAGMENTED = (
    0.1  # of the card: idle memory worth more than this share could have served the request
)
_PIECES = 0.02  # of the card: with less idle, it is full however the pieces lie
_FOREIGN = 0.1  # of the card held by other processes


def found(message: str, text: str, flat: str) -> tuple[int, int, dict[str, str]] | None:
    """How much of a message a text holds, where, and what its holes hold there; None when it does not.

    The pieces between the holes are looked for as they are, in the text in lower case with single spaces (`flat`), before anything is compiled.
    """
    pieces, pattern = _template(message)
    if not pieces or pieces[0] not in flat:
        return None
    whole = _filled(pattern, text) if all(piece in flat for piece in pieces) else None
    # versions differ in how a message ends: a long beginning is enough
    match = whole or (re.search(_literal(_begun(message)), text, re.I) if _begun(message) else None)
    if match is None:
        return None
    held = particular(message) if whole else len(_begun(message)) // 2
    return held, match.start(), {k: v.strip() for k, v in match.groupdict().items()}


def begins(message: str) -> str:
    """The first piece of a message, in lower case with single spaces: a text without it does not hold the message."""
    pieces = _template(message)[0]
    return pieces[0] if pieces else ""


def _filled(pattern: str, text: str) -> re.Match[str] | None:
    """Where a message is with its values; a traceback shows the line that raises it too, with holes of its own."""
    places = list(re.finditer(pattern, text, re.I))
    with_values = (m for m in places if not any("{" in v or "%" in v for v in m.groups()))
    return next(with_values, places[0] if places else None)


def _begun(message: str) -> str:
    """What a message begins with before its first hole, where that is long enough to know it by."""
    begin = message.partition("{")[0].strip()
    return begin if len(begin) >= _ENOUGH and begin != message else ""


def error_at(text: str, place: int) -> int | None:
    """Where the line of a raised error begins that holds this place; None for a line that raises nothing.

    Of several pasted errors the first one is the cause: what Python reports "during handling" of it and what the asker got after a change come later.
    """
    begin = text.rfind("\n", 0, place) + 1
    line = text[begin:].partition("\n")[0]
    return begin if _ERROR.search(line) else None


def last_error(text: str) -> str | None:
    """The last message of a pasted traceback, with the name of its class; None where none was pasted."""
    raised = _RAISED.findall(text)
    return raised[-1].strip(" .") if raised else None


def particular(message: str) -> int:
    """How many characters of a message are its own: the more, the more particular it is."""
    return sum(map(len, _template(message)[0]))


@cache
def _template(message: str) -> tuple[tuple[str, ...], str]:
    parts = _HOLE.split(message.rstrip("."))  # people leave the last full stop out
    literals, names = parts[::2], parts[1::2]
    pattern = _literal(literals[0])
    for name, literal in zip(names, literals[1:], strict=True):
        # what fills a hole is short and stays in its paragraph; a named hole is one word or a list
        hole = r"[^\n]{0,200}?" if name in ("…", "...") else rf"(?P<{name}>[^\n]{{1,160}}?)"
        pattern += hole + (_literal(literal) if literal.strip() else r"(?=[\s.,;:)\]'\"]|$)")
    return tuple(piece for part in literals if (piece := " ".join(part.lower().split()))), pattern


def _literal(text: str) -> str:
    return r"\s+".join(re.escape(word) for word in _SPACE.split(text))


def readings(text: str) -> tuple[frozenset[str], dict[str, str]]:
    """What the numbers in a pasted message show, in words that claims name, and the numbers as people write them."""
    sizes = {name: size for name, pattern in _MEMORY.items() if (size := _size(pattern, text))}
    shows: set[str] = set()
    if "wanted" in sizes and "total" in sizes:
        if "idle" not in sizes and {"reserved", "allocated"} <= sizes.keys():
            sizes["idle"] = sizes["reserved"] - sizes["allocated"]
        if "process" in sizes and "free" in sizes:
            sizes["others"] = max(0.0, sizes["total"] - sizes["process"] - sizes["free"])
        idle = sizes.get("idle", 0.0)
        sizes["together"] = idle + sizes.get("free", 0.0)
        fragmented = idle > max(sizes["wanted"], _FRAGMENTED * sizes["total"])
        pieces = idle > _PIECES * sizes["total"] and sizes["together"] > sizes["wanted"]
        foreign = sizes.get("others", 0.0) > _FOREIGN * sizes["total"]
        shows.add(
            "fragmented" if fragmented else "others" if foreign else "pieces" if pieces else "full"
        )
    if (keys := _UNEXPECTED.search(text)) is not None and _SAVED.search(keys[1]):
        shows.add("checkpoint")
    if (changed := _CHANGED.search(text)) is not None and (
        changed[1] is None or _TURNED.match(changed[1])
    ):
        shows.add("weight")
    if (unequal := _SIZES.search(text)) is not None:
        one, two = (int(n) for n in (unequal[1] or unequal[4], unequal[2] or unequal[5]))
        if 0 in (one, two):
            shows.add("nothing")
        elif unequal[3] == "1" and one > two and two in _POSITIONS:
            shows.add("positions")
        elif abs(one - two) <= _NEARLY and min(one, two) > _LARGE:
            shows.add("off by one")
        elif unequal[3] == "0":
            shows.add("batches")
    if _IN_PLACE in text and re.search(r"BatchNorm", text) and _DDP.search(text):
        shows = (shows - {"weight"}) | {"ddp batchnorm"}
    if "torch.Size([0])" in text:
        shows.add("empty")  # a parameter that lies in shards
    return frozenset(shows), {name: f"{size / 2**30:.2f} GiB" for name, size in sizes.items()}


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group)
    return float(number) * _UNITS["bytes" if unit == "bytes" else unit[0]]

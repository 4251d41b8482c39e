"""What two runs were given before training: environment, code, options and the shape of the model."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fallline.diff.difference import Difference, Kind
from fallline.runs.series import Series

__all__ = ["settings_of"]

_DRAWN = 10  # digits: people write shorter seeds
_MATCHED = 2_000  # lines between the first and the last difference
_SHOWN = 6  # differences of one kind in code and model
# options that say where results go, not how they are made
_INCIDENTAL = frozenset(
    "out output outdir outputs log logs logdir logging save saves run runs tag port wandb tensorboard experiment exp job jobid verbose quiet progress name".split()
)
_RELEVANT = frozenset("model dataset data config optimizer scheduler task tokenizer split".split())
_FIRST = ("torch", "python", "device", "cuda", "cudnn", "threads")
_MEANS = {"seed": "torch's seed"}


def settings_of(a: Series, b: Series) -> tuple[list[Difference], list[str]]:
    """The differences, in the order of cause, and notes on what need not be one."""
    notes: list[str] = []
    found = [
        *_environment(a, b),
        *_code(a, b, notes),
        *_options(a, b, notes),
        *_model(a, b),
    ]
    return found, notes


def _both(a: Series, b: Series, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both runs say about themselves; nothing where only one does."""
    ours, theirs = a.meta.get(key), b.meta.get(key)
    return (dict(ours), dict(theirs)) if ours and theirs else ({}, {})


def _changed(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def _said(value: Any) -> str:
    return "nothing" if value is None else str(value)[:80]


def _differs(kind: Kind, name: str, a: Any, b: Any, module: str | None = None) -> Difference:
    text = f"{_MEANS.get(name, name)}: {_said(a)} → {_said(b)}"
    return Difference(kind, text, None, module, name, a, b)


# -- environment -------------------------------------------------------------------------------------------------


def _environment(a: Series, b: Series) -> Iterator[Difference]:
    ours, theirs = _both(a, b, "environment")
    ours, theirs = (
        {"torch": run.meta.get("torch"), "python": run.meta.get("python"), **about}
        for run, about in ((a, ours), (b, theirs))
    )
    names = [n for n in _changed(ours, theirs) if n != "seed"]
    for name in sorted(names, key=lambda n: (n not in _FIRST, n.endswith("(version)"), n)):
        if name.endswith("(version)") and not (name in ours and name in theirs):
            continue  # a package that only one run has imported: the code says more
        shown = name.removesuffix(" (version)")
        yield _differs("environment", shown, ours.get(name), theirs.get(name))


# -- code --------------------------------------------------------------------------------------------------------


def _code(a: Series, b: Series, notes: list[str]) -> Iterator[Difference]:
    ours, theirs = _both(a, b, "code")
    files, others = _files(ours, a), _files(theirs, b)
    mine, yours = _script(files, a), _script(others, b)
    if mine is not None and yours is not None and mine != yours and mine not in others:
        files = {yours if name == mine else name: file for name, file in files.items()}
    names = [n for n in files if n in others and files[n] != others[n]]
    shown = 0
    for name in names:
        before, after = _lines(files[name]), _lines(others[name])
        if before is None or after is None:
            yield Difference("code", f"{name} is not the same file", name=name)
        elif _same_program(before, after):
            notes.append(f"{name} differs in comments or layout alone")
        else:
            for difference in _hunks(name, before, after):
                shown += 1
                if shown <= _SHOWN:
                    yield difference
    if shown > _SHOWN:
        notes.append(f"and {shown - _SHOWN} more places in the code")
    alone = [n for n in {**files, **others} if (n in files) != (n in others)]
    if alone and files and others:
        notes.append(f"loaded by one run only: {', '.join(alone[:_SHOWN])}")
    notes += _commits(ours, theirs)


def _script(files: Mapping[str, Any], run: Series) -> str | None:
    """The name of the script among the files, which may be called differently in the other run."""
    called = str(run.meta.get("script") or "").replace("\\", "/").rpartition("/")[2]
    return next((name for name in files if name.rpartition("/")[2] == called), None)


def _files(code: Mapping[str, Any], run: Series) -> dict[str, Any]:
    """By path."""
    found = dict(code.get("files") or {})
    cells = run.meta.get("cells") or {}
    found |= {name: {"lines": str(text).splitlines()} for name, text in cells.items()}
    return found


def _lines(file: Any) -> list[str] | None:
    lines = (file or {}).get("lines")
    return [str(line) for line in lines] if isinstance(lines, list) else None


def _same_program(before: list[str], after: list[str]) -> bool:
    try:
        return ast.dump(ast.parse("\n".join(before))) == ast.dump(ast.parse("\n".join(after)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return before == after


def _hunks(name: str, before: list[str], after: list[str]) -> Iterator[Difference]:
    """The places that differ. Where they are too far apart to be matched in reasonable time, all between them is one place."""
    first = _common(before, after)
    last = _common(before[first:][::-1], after[first:][::-1])
    middle = before[first : len(before) - last], after[first : len(after) - last]
    places = [(0, len(middle[0]), 0, len(middle[1]))]
    if max(map(len, middle)) <= _MATCHED:
        matched = difflib.SequenceMatcher(None, *middle).get_opcodes()
        places = [(i, j, k, m) for _, i, j, k, m in matched]
    for i, j, k, m in places:
        old, new = _code_in(middle[0][i:j]), _code_in(middle[1][k:m])
        if old == new:
            continue
        line = first + (k if m > k else i) + 1
        text = f"{name}:{line}: {_edit(old, new)}"
        yield Difference("code", text, name=f"{name}:{line}", a="\n".join(old), b="\n".join(new))


def _common(before: list[str], after: list[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(before), len(after)))


def _code_in(lines: list[str]) -> list[str]:
    """Without empty lines and lines that are comments."""
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _edit(old: list[str], new: list[str]) -> str:
    if not old or not new:
        return f"{'added' if new else 'removed'} {_quoted(new or old)}"
    return f"{_quoted(old)} → {_quoted(new)}"


def _quoted(lines: list[str]) -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"`{lines[0][:80]}`{more}"


def _commits(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    commits = [str(code.get("commit") or "")[:10] for code in (ours, theirs)]
    if all(commits) and commits[0] != commits[1]:
        yield f"commits {commits[0]} and {commits[1]}"
    for run, code in zip("AB", (ours, theirs), strict=True):
        changed = code.get("changed")
        if isinstance(changed, list) and changed:
            names = ", ".join(str(n) for n in changed[:_SHOWN])
            yield f"{run} ran with changes that were not committed: {names}"


# -- options -----------------------------------------------------------------------------------------------------


def _options(a: Series, b: Series, notes: list[str]) -> Iterator[Difference]:
    ours, theirs = _both(a, b, "options")
    values, others = ours.get("values") or {}, theirs.get("values") or {}
    aside = []
    for name in _changed(values, others):
        if _incidental(name):
            aside.append(name)
        else:
            yield _differs("options", name, values.get(name), others.get(name))
    if aside:
        notes.append(f"these options differ, but say where results go: {', '.join(aside[:_SHOWN])}")
    yield from _configurations((ours.get("files") or {}), (theirs.get("files") or {}))
    if a.world != b.world:
        yield _differs("options", "ranks", a.world, b.world)
    if a.meta.get("autocast") != b.meta.get("autocast"):
        if "autocast" in a.meta and "autocast" in b.meta:
            yield _differs("options", "autocast", a.meta["autocast"], b.meta["autocast"])
    seeds = [about.get("seed") for about in _both(a, b, "environment")]
    if seeds[0] != seeds[1]:
        found = _differs("options", "seed", *seeds)
        if all(len(str(seed)) > _DRAWN for seed in seeds):
            found.what = "torch's seed: the script sets none, so each run draws its own"
        yield found


def _incidental(name: str) -> bool:
    words = set(re.split(r"[_.\-\s]+", name.lower()))
    return bool(words & _INCIDENTAL) and not words & _RELEVANT


def _configurations(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    for name in ours.keys() & theirs.keys():
        before, after = [str(x) for x in ours[name]], [str(x) for x in theirs[name]]
        for difference in list(_hunks(name, before, after))[:_SHOWN]:
            difference.kind = "options"
            yield difference


# -- model -------------------------------------------------------------------------------------------------------


def _model(a: Series, b: Series) -> Iterator[Difference]:
    ours, theirs = _both(a, b, "model")
    for shown, path in enumerate(_changed(ours, theirs)):
        if shown == _SHOWN:
            return
        here, there = ours.get(path) or {}, theirs.get(path) or {}
        if not here or not there or here.get("type") != there.get("type"):
            where = path or "the model"
            yield _differs("options", where, here.get("type"), there.get("type"), path)
            continue
        for name in _changed(here, there):
            full = f"{path}.{name}" if path else name
            yield _differs("options", full, here.get(name), there.get(name), path)

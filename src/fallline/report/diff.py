"""Two runs in a terminal: the verdict, what differs in the order of cause, what is the same."""

from __future__ import annotations

from fallline.diff import Comparison, Difference
from fallline.report.run import overview
from fallline.runs.series import Series
from fallline.show.numbers import number
from fallline.show.terminal import Paint, counted

__all__ = ["headline", "noise_text", "run_line", "summary"]

_NAMES = {
    "learning-rate": "learning rate",
    "numbers": "numbers",
}


def summary(a: Series, b: Series, found: Comparison, paint: Paint) -> str:
    """What `fallline diff` prints."""
    lines = [f"{paint(name, 'bold')}  {run_line(run)}" for name, run in (("A", a), ("B", b))]
    lines += ["", paint(headline(found), "bold"), ""]
    width = max((len(_name(d)) for d in found.differences), default=0)
    lines += [
        f"  {place}. {paint(f'{_name(d):<{width}}', 'dim')}  {d.what}"
        for place, d in enumerate(found.differences, 1)
    ]
    lines += [""] if found.differences else []
    said = noise_text(found)
    if said:
        lines.append(f"  {said}")
    if found.agrees:
        lines.append(f"  the same: {', '.join(found.agrees)}")
    lines += [f"  {note}" for note in found.notes]
    return "\n".join(lines).rstrip() + "\n"


def _name(difference: Difference) -> str:
    return _NAMES.get(difference.kind, difference.kind)


def run_line(run: Series) -> str:
    """Which run it is, and how it went."""
    meta = run.meta
    track = max(run.tracks, key=lambda t: (-t.rank, len(t.rows)), default=None)
    seen = overview(run, track)
    words = " ".join(map(str, [meta.get("script") or "run", *(meta.get("argv") or [])]))
    code = meta.get("code")
    commit = str(code.get("commit") or "")[:10] if isinstance(code, dict) else ""
    went = f"{counted(seen.updates, 'update')}, loss {number(seen.first_loss)} → {number(seen.last_loss)}"
    parts = [str(run.folder), words, f"torch {meta['torch']}" if meta.get("torch") else "", commit, went]  # fmt: skip
    return " · ".join(part for part in parts if part)


def headline(found: Comparison) -> str:
    """The verdict in a sentence."""
    compared = counted(found.updates, "update")
    first = found.first
    if found.same:
        how = "bit for bit" if found.noise.identical else "within noise"
        said = f"The runs train the same, {how}, in {compared}."
        return f"{said} What differs around them:" if first is not None else said
    assert first is not None
    return f"The runs differ, first in {_place(first)}: {first.what}"


def _place(first: Difference) -> str:
    return {
        "environment": "the environment",
        "code": "the code",
        "options": "the options",
        "data": "the data",
        "initialisation": "the initialisation",
        "learning-rate": "the learning rate",
        "optimizer": "the optimizer",
        "numbers": "the numbers",
    }[first.kind]


def noise_text(found: Comparison) -> str:
    """How the noise was told from a change."""
    noise = found.noise
    if noise.identical or (not found.same and noise.jump in (None, noise.onset)):
        return ""
    begins = (
        f"the losses first differ at update {noise.onset}, by {number(noise.first)} of their size"
    )
    if found.same:
        known = (
            "a repeat differs as much"
            if noise.measured
            else f"as rounding in {noise.format} does (up to {number(noise.floor)})"
        )
        grown = f", and grow apart without a jump, to {number(noise.largest)}" if noise.largest > noise.floor else ""  # fmt: skip
        return f"noise: {begins}, {known}{grown}"
    return f"noise: {begins}; at update {noise.jump} noise explains {number(noise.allowed)} at most"

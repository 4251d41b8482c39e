"""The evidence as a page: by specialist, each claim with what was taught, what was measured, and a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fallline.errors import UsageError
from fallline.files import write_atomically
from fallline.proof.experiment import where
from fallline.proof.figure import figure
from fallline.proof.record import Outcome, read, written
from fallline.proof.text import table
from fallline.report import rule_page
from fallline.rules import rule_by_code
from fallline.specialists import SPECIALISTS

__all__ = ["documents", "page", "write"]

_FIGURES = "images/evidence"

# How a page of ours is known when it is written again.
_MARK = "written by `fallline prove --all"

_HEAD = """\
# Evidence

Every rule about what training computes, and every fact that the advice rests on, is a small seeded experiment: the mistake and its absence side by
side, and conditions that must hold. `fallline prove NAME` repeats one on your machine, `fallline prove --all` all of them; [prove.md](prove.md) says how to read them.
This page is written by `fallline prove --all --out DIR`, never by hand.

The models are small and the data made up, so a number here is the size of an effect there, not on your model; a claim rests on the conditions below its figure, which leave room for another
machine. The last line names the module to read."""


def documents(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The page and the figures, by their path in the folder."""
    known = [o for o in outcomes if o.measured]
    return {"evidence.md": page(known), **{_figure(o.of): figure(o) for o in known}}


def _figure(of: str) -> str:
    return f"{_FIGURES}/{of}.svg"


def write(outcomes: Iterable[Outcome], folder: Path) -> None:
    """The page, its figures and the record. Figures of the record that was there before go; a page of somebody else's stays."""
    known = [o for o in outcomes if o.measured]
    before = {_figure(o.of) for o in read(folder / "evidence.json")}
    wanted = {**documents(known), "evidence.json": written(known)}
    _refuse_foreign(folder / "evidence.md")
    try:
        for name, text in wanted.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(str(target), text.encode())
        for old in before - wanted.keys():
            (folder / old).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from None


def _refuse_foreign(path: Path) -> None:
    if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(f"{path} was not written by fallline: choose another folder with --out")


def page(outcomes: Iterable[Outcome]) -> str:
    """docs/evidence.md."""
    known = sorted(outcomes, key=lambda o: (not o.is_rule, o.of))
    usual = Counter((o.machine, o.torch) for o in known if not o.needs).most_common(1)
    here = usual[0][0] if usual else ("", "")
    parts = [_HEAD, _counts(known, here)]
    for specialist in SPECIALISTS:
        mine = [o for o in known if o.room == specialist.room]
        if mine:
            parts.append(f"## {specialist.name}\n\n{_contents(mine)}")
            parts += [_entry(o, here) for o in mine]
    return "\n\n".join(parts) + "\n"


def _counts(known: list[Outcome], here: tuple[str, str]) -> str:
    rules = sum(o.is_rule for o in known)
    wrong = sum(bool(o.taught) for o in known)
    seconds = sum(o.seconds for o in known)
    refuted = [o.of for o in known if o.verdict == "refuted"]
    told = (
        f"{rules} rules and {len(known) - rules} facts. For {wrong} of them, common advice is wrong or holds only under conditions. "
        f"Measured on {here[0]} with torch {here[1]}, {seconds:.0f} seconds in all; where a device was needed, the entry names it."
    )
    return told + (f"\n\n**Refuted here: {', '.join(refuted)}.**" if refuted else "")


def _contents(outcomes: list[Outcome]) -> str:
    kinds = (
        ("Rules", [o for o in outcomes if o.is_rule]),
        ("Facts", [o for o in outcomes if not o.is_rule]),
    )
    return "\n\n".join(
        f"{kind}: " + " · ".join(f"[{o.of}](#{o.anchor})" for o in some)
        for kind, some in kinds
        if some
    )


def _entry(outcome: Outcome, here: tuple[str, str]) -> str:
    called = f" {outcome.name}" if outcome.is_rule else ""
    parts = [f'### <a id="{outcome.anchor}"></a>{outcome.of}{called}', outcome.claim]
    if outcome.taught:
        parts.append(f"**Often taught:** {outcome.taught}  \n**Measured:** {outcome.says}")
    else:
        parts.append(f"**Measured:** {outcome.says}")
    parts.append(_sides(outcome))
    parts.append(f"![{outcome.of}]({_FIGURES}/{outcome.of}.svg)")
    if outcome.verdict == "proved":
        parts.append(f"**Held:** {'; '.join(outcome.holds)}.")
    if outcome.verdict == "refuted":
        broken = "; ".join(words for words, held in outcome.holds.items() if not held)
        parts.append(f"**Refuted:** not so: {broken}.")
    parts.append(_foot(outcome, here))
    return "\n\n".join(part for part in parts if part)


def _sides(outcome: Outcome) -> str:
    heads, rows = table(outcome)
    if not rows:
        return ""
    lines = ["| " + " | ".join(map(_cell, heads)) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _foot(outcome: Outcome, here: tuple[str, str]) -> str:
    """How to repeat it, how long that takes, and where it was measured if not where the others were."""
    parts = [f"`fallline prove {outcome.of}`", f"{outcome.seconds:.1f} s"]
    if outcome.of in where():
        parts.append(f"`{where()[outcome.of]}`")
    if (outcome.machine, outcome.torch) != here:
        parts.append(f"{outcome.machine}, torch {outcome.torch}")
    rule = rule_by_code(outcome.of)
    if rule is not None:
        parts.append(f"[the rule](rules/{rule_page.page_name(rule)})")
    return " · ".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

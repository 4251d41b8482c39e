"""What `fallline prove` does."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from fallline.errors import UsageError
from fallline.proof import experiment, measure
from fallline.proof.record import all_recorded, read, recorded
from fallline.proof.text import text
from fallline.proof.unfinished import Unfinished
from fallline.report.evidence_page import write
from fallline.rules import all_rules, rule_by_code
from fallline.show.terminal import Paint, counted, wants_colour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from fallline.proof.record import Outcome

__all__ = ["run"]

_NARROWEST, _WIDEST = 40, 96  # columns


def run(args: Namespace) -> int:
    _refuse_contradictions(args)
    if args.list:
        print(_listed(args))
        return 0
    folder = Path(args.out) if args.out else None
    if args.merge:
        assert folder is not None
        return _merge(Path(args.merge), folder)
    names = _names(args)
    _need_torch()
    outcomes = _measured(names, args) if folder is None else _recorded(names, args, folder)
    if args.output_format == "json":
        print(json.dumps([o.as_dict() for o in outcomes], indent=2, ensure_ascii=False))
    elif args.all:
        print(_summary(outcomes))
    else:
        print(_shown(outcomes))
    return _status(outcomes)


def _refuse_contradictions(args: Namespace) -> None:
    refused = (
        (args.jobs is not None and args.jobs < 1, "--jobs is a number of processes, 1 or more"),
        (args.needs and not args.all, "--needs chooses among all experiments: give it with --all"),
        (
            args.go_on and not (args.all and args.out),
            "--continue measures the rest of a stopped `prove --all --out DIR`: give it with --all and the same --out",
        ),
        (args.seed < 0, "--seed is the number added to every seed, 0 or more"),
        (
            args.seed and args.out,
            "the record is for the default seeds: leave out --seed or --out",
        ),
        (
            args.merge and (args.all or args.name),
            "--merge takes over what was measured elsewhere: give it alone",
        ),
        (args.merge and not args.out, "--merge needs the folder of the evidence: add --out DIR"),
    )
    for wrong, why in refused:
        if wrong:
            raise UsageError(why)


def _recorded(names: list[str], args: Namespace, folder: Path) -> list[Outcome]:
    """Measured, and written into the folder."""
    _need_room(folder)
    # a record of one device's experiments is for --merge: it holds nothing else
    before = {} if args.needs else _before(folder)
    if args.all:
        outcomes = _measured_bit_by_bit(names, args, folder)
    else:
        outcomes = _measured(names, args)
    _write(outcomes, before, folder, whole=args.all)
    return outcomes


# -- which ----------------------------------------------------------------------------------------------------------


def _names(args: Namespace) -> list[str]:
    if args.all:
        if args.name:
            raise UsageError("give names or --all, not both")
        return [name for name in experiment.where() if not args.needs or _needs(name, args.needs)]
    if not args.name:
        raise UsageError("name a rule or a fact, such as `fallline prove FL201`; --list shows them")
    return list(dict.fromkeys(found for given in args.name for found in _called(given)))


def _needs(name: str, device: str) -> bool:
    """From the file's text, so that choosing needs no torch."""
    import importlib.util
    import re

    spec = importlib.util.find_spec(experiment.where()[name])
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    head = re.search(rf'^@experiment\(\s*"{name}".*?^def ', source, re.MULTILINE | re.DOTALL)
    return head is not None and f'needs="{device}"' in head[0]


def _called(given: str) -> list[str]:
    """A rule by code or name, a fact by name. Where a rule and a fact share a name, both."""
    from difflib import get_close_matches

    there = experiment.where()
    rule = rule_by_code(given)
    wanted = [rule.code] if rule else []
    found = [name for name in (*wanted, given.strip().lower()) if name in there]
    if found:
        return found
    if rule is not None:
        raise UsageError(
            f"{rule.code} {rule.name} has no experiment: it is not about what training computes. `fallline rule {rule.code}` explains it"
        )
    words = [*there, *(r.name for r in all_rules() if r.code in there)]
    asked = given.strip().lower()
    within = [word for word in dict.fromkeys(words) if asked and asked in word.lower()]
    near = (
        [word for word in within if word.lower().startswith(asked)][:3]
        or within[:3]
        or get_close_matches(given.upper(), words, 2)
        or get_close_matches(given.lower(), words, 3)
    )
    hint = f"Did you mean {' or '.join(near)}?" if near else "`fallline prove --list` shows them."
    raise UsageError(f"no rule or fact is called '{given}'. {hint}")


def _listed(args: Namespace) -> str:
    rows = []
    for name in sorted(experiment.where(), key=lambda n: (not n.startswith("FL"), n)):
        known, rule = recorded(name), rule_by_code(name)
        called = rule.name if rule and rule.code == name else name
        if args.name and not any(g.lower() in f"{name} {called}".lower() for g in args.name):
            continue
        rows.append(
            {
                "of": name,
                "name": called,
                "claim": known.claim if known else "",
                "verdict": known.verdict if known else "not recorded",
            }
        )
    if not rows:
        raise UsageError(
            f"no experiment has '{' or '.join(args.name)}' in its name; `fallline prove --list` shows all of them"
        )
    if args.output_format == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False)
    width = max(len(r["of"]) for r in rows)
    return "\n".join(
        f"{r['of']:<{width}}  {r['claim'] or r['name']}".rstrip()
        + ("" if r["verdict"] == "proved" else f" [{r['verdict']}]")
        for r in rows
    )


# -- measuring ------------------------------------------------------------------------------------------------------


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError(
            "experiments run torch, and there is none in this Python: install torch, or read docs/evidence.md for what was recorded"
        )


def _measured(
    names: list[str], args: Namespace, keep: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    jobs = args.jobs or max(1, min(len(names), _cores()))
    progress = _Progress(len(names)) if args.all else None

    def done(outcome: Outcome) -> None:
        keep(outcome)
        if progress:
            progress.tick(outcome)

    try:
        return measure.measure(names, jobs=jobs, seeds_by=args.seed, done=done)
    finally:
        if progress:
            progress.close()


def _measured_bit_by_bit(names: list[str], args: Namespace, folder: Path) -> list[Outcome]:
    """Minutes of measuring outlive a Ctrl-C: what is measured is kept, said, and taken over by a run that continues."""
    unfinished = Unfinished(folder)
    there = {}
    if args.go_on:
        there = {o.of: o for o in unfinished.of(names)}
        if not there:
            raise UsageError(
                f"there is no stopped run in {folder} to continue: leave out --continue"
            )
        print(f"{counted(len(there), 'experiment')} measured before the stop", file=sys.stderr)
    try:
        new = _measured([n for n in names if n not in there], args, unfinished.add)
    except KeyboardInterrupt:
        if len(unfinished):
            print(
                f"measured {len(unfinished)} of {counted(len(names), 'experiment')}, kept in {unfinished.path}: "
                "the same command with --continue measures the others",
                file=sys.stderr,
            )
        raise
    found = there | {o.of: o for o in new}
    return [found[name] for name in names]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


class _Progress:
    """Who is done, on the error stream: one line that is rewritten for a person, whole lines for a log."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.watched = total, 0, sys.stderr.isatty()

    def tick(self, outcome: Outcome) -> None:
        self.done += 1
        line = f"{self.done}/{self.total} {outcome.of} {outcome.verdict}"
        bad = outcome.verdict in {"refuted", "failed"}
        if self.watched:
            end = "\n" if bad else ""
            sys.stderr.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}{end}")
        elif bad or self.done % 10 == 0 or self.done == self.total:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self.watched:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# -- showing --------------------------------------------------------------------------------------------------------


def _shown(outcomes: list[Outcome]) -> str:
    paint = Paint(wants_colour("auto", sys.stdout))
    width = max(_NARROWEST, min(shutil.get_terminal_size((80, 24)).columns, _WIDEST))
    plain = not _can_write("✓●│█", sys.stdout.encoding)
    parts = []
    for outcome in outcomes:
        parts.append(text(outcome, width, paint, plain=plain))
        before = recorded(outcome.of)
        if outcome.verdict == "unavailable" and before is not None and before.measured:
            told = text(before, width, paint, plain=plain)
            parts.append(f"What was recorded on another machine:\n\n{told}")
    rule = ("-" if plain else "─") * width
    return f"\n\n{rule}\n\n".join(parts) if len(parts) > 1 else parts[0]


def _can_write(characters: str, encoding: str | None) -> bool:
    try:
        characters.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _summary(outcomes: list[Outcome]) -> str:
    from collections import Counter

    lines = []
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        elsewhere = _shown_elsewhere(outcome)
        counts["proved elsewhere, as recorded" if elsewhere else outcome.verdict] += 1
        if outcome.verdict == "refuted":
            broken = [words for words, held in outcome.holds.items() if not held]
            lines.append(f"{outcome.of} refuted: {'; '.join(broken)}")
        elif not outcome.measured and not elsewhere:
            last = (outcome.problem.strip().splitlines() or [""])[-1]
            lines.append(f"{outcome.of} {outcome.verdict}: {last}")
    told = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    lines.append(f"{counted(len(outcomes), 'experiment')}: {told}")
    return "\n".join(lines)


def _shown_elsewhere(outcome: Outcome) -> bool:
    """What this machine cannot show is proved by the record, or it is not proved."""
    before = recorded(outcome.of)
    return outcome.verdict == "unavailable" and before is not None and before.verdict == "proved"


def _status(outcomes: list[Outcome]) -> int:
    verdicts = {o.verdict for o in outcomes if not _shown_elsewhere(o)}
    if "refuted" in verdicts:
        return 1
    return 2 if verdicts - {"proved"} else 0


# -- the record -----------------------------------------------------------------------------------------------------


def _need_room(folder: Path) -> None:
    """Before minutes of measuring, not after them: can the evidence be written here? The folder is made only then."""
    import tempfile

    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    if not there.is_dir():
        raise UsageError(f"{there} is not a folder, and the evidence is several files")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise UsageError(f"cannot write into {there}: {error.strerror}") from None


def _before(folder: Path) -> dict[str, Outcome]:
    """What was recorded in this folder, or else in the package."""
    return {o.of: o for o in read(folder / "evidence.json")} or dict(all_recorded())


def _write(
    outcomes: list[Outcome], before: dict[str, Outcome], folder: Path, *, whole: bool
) -> None:
    """The evidence in this folder. What could not be measured here keeps what was recorded; a failure is not evidence."""
    new = {o.of: o for o in outcomes if o.measured}
    failed = {o.of for o in outcomes if o.verdict == "failed"}
    there = {o.of for o in outcomes} if whole else before.keys()
    kept = {of: o for of, o in before.items() if of in there - failed}
    write({**kept, **new}.values(), folder)
    if whole:
        Unfinished(folder).close()
    print(f"wrote {folder / 'evidence.md'} and {folder / 'evidence.json'}", file=sys.stderr)


def _merge(file: Path, folder: Path) -> int:
    if not file.is_file():
        raise UsageError(
            f"{file} is not a file; `fallline prove --all --out DIR` writes DIR/evidence.json"
        )
    outcomes = [o for o in read(file) if o.measured]
    _need_room(folder)
    _write(outcomes, _before(folder), folder, whole=False)
    print(f"took over {', '.join(o.of for o in outcomes) or 'nothing'}")
    return _status(outcomes)

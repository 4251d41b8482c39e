"""What each tool does, in plain Python: reads, never runs, never writes. Raises `FalllineError` for what a caller can mend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from fallline.check.discovery import discover
from fallline.check.fixing import Fixer
from fallline.check.outcome import check
from fallline.check.settings import Settings, load
from fallline.check.sources import Sources
from fallline.check.suppress import silenced
from fallline.conclude import findings_of
from fallline.diff import compare
from fallline.errors import RunError, UsageError
from fallline.finding import Finding
from fallline.instruments.clip.threshold import propose_from_series
from fallline.limits import MEMORY, die_with_parent, limit_memory
from fallline.mcp.confine import MOST_FILES, MOST_FINDINGS, Root, bounded, too_large
from fallline.mcp.contract import (
    AnswerObject,
    Checked,
    ClipObject,
    ComplaintObject,
    DiffObject,
    FindingObject,
    Fixed,
    RuleObject,
    RunObject,
    Seen,
    SpecialistObject,
)
from fallline.report.diff import headline, noise_text
from fallline.report.json import plain
from fallline.report.run import overview, verdict
from fallline.rule import Rule
from fallline.rules import all_rules, rule_by_code
from fallline.runs.read import read_run as read_series
from fallline.runs.series import Series
from fallline.runs.store import rank_files
from fallline.specialists import SPECIALISTS
from fallline.triage.answer import answer
from fallline.triage.evaluate import judge
from fallline.triage.evidence import PASTED, corrected, gather, seen_in
from fallline.triage.gathered import Gathered
from fallline.triage.playbook import playbooks
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

__all__ = [
    "ask",
    "check_advice",
    "check_code",
    "check_path",
    "explain_rule",
    "fix_code",
    "known_rule",
    "limited",
    "list_specialists",
    "propose_clip",
    "read_run",
]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# Submitted code gets a name in a folder that does not exist, so that none of its imports finds a file of ours.
_NOWHERE = "<code>"
_SUBMITTED = os.path.join(_NOWHERE, "train.py")


def limited(job: Callable[[*Arguments], T], *given: *Arguments) -> T:
    """The job, in a worker process: with so much memory, and not for longer than there is a server."""
    _limit_this_process()
    try:
        return job(*given)
    except MemoryError:
        raise UsageError(
            f"this takes more than {MEMORY >> 30} GB of memory to read: send less, such as one file"
        ) from None


@cache
def _limit_this_process() -> None:
    limit_memory()
    die_with_parent()


def check_code(code: str) -> Checked:
    """The findings of one piece of code."""
    text = bounded(code, "the code")
    loud, hidden = _heard(read_text(text, _SUBMITTED), Sources({_SUBMITTED: text.encode()}))
    return _checked(loud, [f.at.path for f in loud], files=1, silenced=hidden, left_out=[])


def check_path(path: str, root: Root) -> Checked:
    """The findings of a file, or of every file below a folder."""
    target = root.find(path)
    settings = _settings(target, root)
    files, problems = discover([str(target)], settings)
    kept, left_out = root.sifted(files)
    if not target.is_dir() and left_out:
        raise UsageError(left_out[0])
    if len(kept) > MOST_FILES:
        raise UsageError(
            f"{path!r} holds {len(kept)} files, and at most {MOST_FILES} are read at once: name a smaller folder"
        )
    outcome = check(kept, settings, jobs=1, baseline=settings.baseline)
    # an import can lead to a link that leads out of the root; what is there is not told
    inside = [f for f in outcome.findings if root.holds(f.at.path)]
    return _checked(
        inside,
        [root.shown(f.at.path) for f in inside],
        files=len(kept),
        silenced=None,
        left_out=[
            *left_out,
            *(f"{folder}: {reason}" for folder, reason in problems),
            *outcome.failures,
        ],
    )


def _checked(
    findings: list[Finding],
    paths: list[str],
    *,
    files: int,
    silenced: int | None,
    left_out: list[str],
) -> Checked:
    shown = [FindingObject.of(f, path) for f, path in zip(findings, paths, strict=True)]
    return Checked(
        verdict=verdict(findings),
        findings=shown[:MOST_FINDINGS],
        not_shown=len(shown[MOST_FINDINGS:]),
        files=files,
        silenced=silenced,
        left_out=left_out,
    )


def _settings(target: Path, root: Root) -> Settings:
    """`[tool.fallline]` of the project, as long as that lies below the root."""
    settings = load([str(target)], below=str(root.folder))
    if settings.file is None:
        settings.root = str(root.folder)
    if settings.baseline is not None and not root.holds(settings.baseline):
        settings.baseline = None
    return settings


def fix_code(code: str, unsafe_fixes: bool = False) -> Fixed:
    """The code with every fix that removes its finding and adds none."""
    text = bounded(code, "the code")
    given = {_SUBMITTED: text.encode()}
    fixer = Fixer(
        read_paths([_SUBMITTED], roots=[_NOWHERE], given=given),
        lambda finding, sources: not silenced(finding, sources.text(_SUBMITTED)),
        _NOWHERE,
        given,
        unsafe_fixes,
    )
    fixer.run()
    data = fixer.state.changed.get(_SUBMITTED, given[_SUBMITTED])
    remaining, _ = _heard(fixer.state.readings[_SUBMITTED].findings, Sources({_SUBMITTED: data}))
    return Fixed(
        code=data.decode(),
        changed=bool(fixer.changes()),
        diff=fixer.diff(),
        made=[Seen.of(f) for f in fixer.made],
        remaining=[Seen.of(f) for f in remaining],
    )


def _heard(findings: Iterable[Finding], sources: Sources) -> tuple[list[Finding], int]:
    """The findings that no comment silences, and how many one does."""
    found = list(findings)
    loud = [f for f in found if not silenced(f, sources.text(f.at.path))]
    return loud, len(found) - len(loud)


def explain_rule(code: str) -> RuleObject:
    """One rule, by code or name."""
    return RuleObject.of(known_rule(code))


def known_rule(code: str) -> Rule:
    """The rule, or an error that names its neighbours."""
    from difflib import get_close_matches

    rule = rule_by_code(code)
    if rule is None:
        asked = code[:60]
        names = [word for known in all_rules() for word in (known.code, known.name)]
        near = (
            [name for name in names if asked and name.startswith(asked.upper())][:9]
            or get_close_matches(asked.upper(), names, 3)
            or get_close_matches(asked.lower(), names, 3)
        )
        hint = f"Near it: {', '.join(near)}." if near else "list_specialists names every rule."
        raise UsageError(f"there is no rule {asked!r}. {hint}")
    return rule


def ask(question: str, code: str, path: str, run: str, more: bool, root: Root) -> AnswerObject:
    """An answer from the playbooks, with the evidence that came along."""
    if not bounded(question, "the question").strip():
        raise UsageError("there is no question: say what the loop does and what you see")
    evidence = Gathered([])
    shown: dict[str, str] = {}
    texts = [bounded(code, "the code")] if code.strip() else []
    if not texts and not path:  # a fragment pasted into a question need not be whole
        evidence.add(gather(question))
    for text in texts:
        found = corrected(text, _SUBMITTED)
        evidence.add(found)
    if path:
        checked = _of_file(path, root)
        evidence.add(checked)
        shown |= {f.at.path: root.shown(f.at.path) for f in checked.findings}
    if run:
        evidence.add(seen_in(*_of_run(run, root), run))
    reply = answer(question, evidence, run)
    return AnswerObject.of(reply, {_SUBMITTED: "code", PASTED: "code", **shown}, more)


def check_advice(text: str) -> list[ComplaintObject]:
    """What is refuted in a piece of advice, and the mistakes in its code."""
    if not bounded(text, "the advice").strip():
        raise UsageError("there is no advice: send the answer as it would be given")
    return [ComplaintObject.of(complaint) for complaint in judge(text)]


def _of_file(path: str, root: Root) -> Gathered:
    file = root.find(path)
    if not file.is_file():
        raise UsageError(f"{path!r} is not a file; check_path reads folders")
    try:
        if reason := too_large(file):
            raise UsageError(f"{path!r}: {reason}")
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read ({error.strerror})") from None
    if file.suffix == ".ipynb":  # its fixes are edits of cells, not of this text
        text = data.decode("utf-8", errors="replace")
        return Gathered(read_text(data, str(file)), read={str(file): text})
    found = corrected(data.decode("utf-8", errors="replace"), str(file))
    found.findings = [f for f in found.findings if root.holds(f.at.path)]
    return found


def read_run(folder: str, root: Root) -> RunObject:
    """How a watched run went, and what was found in it."""
    series, findings = _of_run(folder, root)
    track = max(series.tracks, key=lambda t: (-t.rank, len(t.rows)), default=None)
    seen = overview(series, track)
    return RunObject(
        verdict=verdict(findings),
        script=str(series.meta.get("script") or ""),
        status=seen.status,
        ranks=len(series.ranks),
        optimizer=track.optimizer if track is not None else "",
        updates=seen.updates,
        skipped=seen.skipped,
        numbers=plain(
            {
                "first_loss": seen.first_loss,
                "last_loss": seen.last_loss,
                "gradient_norm_median": seen.norm,
                "clip_threshold": seen.threshold,
                "clipped_share": seen.clipped,
                "learning_rate": seen.rate,
                "loss_scale": seen.scale,
                "update_seconds_median": seen.update_seconds,
                "peak_memory_bytes": seen.memory,
                "duration_seconds": seen.duration,
            }
        ),
        findings=[FindingObject.of(f) for f in findings],
    )


def propose_clip(folder: str, quantile: float, root: Root) -> list[ClipObject]:
    """A clip threshold from the norms of a watched run, for each of its optimizers."""
    proposal = propose_from_series(_of_run(folder, root)[0], quantile=quantile, shown=folder)
    return [ClipObject.of(clip) for clip in proposal.clips]


def diff_runs(a: str, b: str, root: Root) -> DiffObject:
    """What differs between two runs."""
    found = compare(_series_in(a, root), _series_in(b, root))
    return DiffObject(
        verdict=headline(found),
        same=found.same,
        differences=[plain(d.to_json()) for d in found.differences],
        notes=[*filter(None, [noise_text(found)]), *found.notes],
    )


def _of_run(folder: str, root: Root) -> tuple[Series, list[Finding]]:
    """The run and its findings."""
    series = _series_in(folder, root)
    return series, findings_of(series, _settings(root.find(folder), root).thresholds)


def _series_in(folder: str, root: Root) -> Series:
    """The run. Nothing is written, whatever is missing there."""
    home = root.find(folder)
    if home.is_dir() and not all(root.holds(file) for file in rank_files(home).values()):
        raise UsageError(f"{folder!r} contains links that lead out of the root")
    try:
        return read_series(home)
    except RunError:
        raise RunError(
            f"{folder!r} is not a run folder, or is damaged: `fallline run --out DIR train.py` makes one"
        ) from None


def list_specialists() -> list[SpecialistObject]:
    """The ten, with what each knows."""
    cases = {book.specialist: [case.title for case in book.cases] for book in playbooks()}
    return [
        SpecialistObject(
            s.name,
            s.about,
            cases.get(s.name, []),
            [f"{rule.code} {rule.name}" for rule in all_rules() if rule.specialist == s],
            f"fallline://playbooks/{s.name}",
        )
        for s in SPECIALISTS
    ]

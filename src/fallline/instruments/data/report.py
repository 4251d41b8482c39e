"""What `fallline measure data` answers with: what is wrong first, then the samples with what each token is taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fallline.finding import Finding
from fallline.lessons.leaks import Repeated
from fallline.lessons.learns import Learning
from fallline.lessons.lesson import Lesson, Observation
from fallline.lessons.packed import borders
from fallline.lessons.plain import Plain
from fallline.lessons.policy import Numbers
from fallline.lessons.supervised import rows_of
from fallline.lessons.words import Words
from fallline.show.terminal import Paint, counted
from fallline.untrusted import printable

__all__ = ["Run", "Sample", "Taught", "shown"]

_SHOWN = 6  # samples
_TOKENS = 400  # of one sample, before the middle is left out
STYLES = {
    "learned": "bold green",
    "ignored": "dim",
    "padding": "dim blue",
    "special": "yellow",
    "wrong": "bold red",
    "border": "bold red",
}
LEGEND = {
    "learned": "learned",
    "ignored": "read, not learned",
    "padding": "padding",
    "special": "special token, not learned",
    "wrong": "padding that is learned",
    "border": "next packed sample",
}


@dataclass(slots=True)
class Run:
    """Neighbouring tokens of one kind."""

    kind: str
    text: str
    tokens: int = 1


@dataclass
class Sample:
    """One row of a batch, decoded."""

    batch: int
    row: int
    tokens: int
    learned: int
    padding: int
    runs: list[Run]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "runs": [[r.kind, r.text, r.tokens] for r in self.runs]}


def shown(lessons: Sequence[Lesson], words: Words) -> list[Sample]:
    """The first samples of each batch, token by token."""
    found: list[Sample] = []
    texts = [x for x in lessons if x.ids is not None and x.labels is not None]
    each = max(1, _SHOWN // max(len(texts), 1))
    for number, lesson in enumerate(texts):
        begins = borders(lesson)
        for row, sample in enumerate(rows_of([lesson])[:each]):
            kinds = _kinds(sample, words)
            found.append(
                Sample(
                    batch=number,
                    row=row,
                    tokens=int(sample.real.sum()),
                    learned=int((sample.learned & sample.real).sum()),
                    padding=int((~sample.real).sum()),
                    runs=_runs(sample.ids.tolist(), kinds, set(begins[row]), words),
                )
            )
    return found[:_SHOWN]


def _kinds(sample: Any, words: Words) -> list[str]:
    kinds = []
    for token, real, learned in zip(
        sample.ids.tolist(), sample.real.tolist(), sample.learned.tolist(), strict=True
    ):
        if learned:
            kinds.append("learned" if real else "wrong")
        elif not real:
            kinds.append("padding")
        else:
            kinds.append("special" if token in words.special else "ignored")
    return kinds


def _runs(ids: list[int], kinds: list[str], begins: set[int], words: Words) -> list[Run]:
    runs: list[Run] = []
    skip = range(_TOKENS // 2, len(ids) - _TOKENS // 2)
    for place, (token, kind) in enumerate(zip(ids, kinds, strict=True)):
        if place in begins:
            runs.append(Run("border", "", 0))
        if place in skip:
            if place == skip.start:
                runs.append(Run("ignored", f" … {len(skip)} tokens … ", 0))
            continue
        if runs and runs[-1].kind == kind and runs[-1].tokens:
            if kind != "padding":
                runs[-1].text += words.word(token)
            runs[-1].tokens += 1
        else:
            runs.append(Run(kind, words.word(token)))
    return runs


@dataclass
class Taught:
    """What the first batches of a run teach, and what can learn from them."""

    samples: list[Sample]
    observed: list[Observation]
    lessons: list[Lesson]
    words: Words
    learning: list[Learning]
    plain: Plain
    repeated: Repeated
    policy: Numbers = field(default_factory=Numbers)
    rewarded: bool = False
    losses: list[float] = field(default_factory=list)
    updates: int = 0
    partial: bool = False
    status: int = 0
    findings: list[Finding] = field(default_factory=list)  # what the rules make of `observed`
    colour: bool = False

    def _with_samples(self) -> Taught:
        self.samples = shown(self.lessons, self.words)
        return self

    @property
    def shares(self) -> dict[str, float]:
        """Of all positions: learned, padding that is learned, read but not learned, padding that is not learned."""
        learned = mistaken = padding = positions = 0
        for row in rows_of(self.lessons):
            positions += len(row.ids)
            learned += int(row.learned.sum())
            mistaken += int((~row.real & row.learned).sum())
            padding += int((~row.real & ~row.learned).sum())
        if not positions:
            return {}
        rest = positions - learned - padding
        return {
            "learned": learned / positions,
            "padding learned": mistaken / positions,
            "ignored": rest / positions,
            "padding": padding / positions,
        }

    @property
    def rows(self) -> int:
        return self.repeated.samples

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [f.as_dict() for f in self.findings],
            "batches": len(self.lessons),
            "samples": self.rows,
            "shares": self.shares,
            "shown": [s.to_json() for s in self.samples],
            "learning": [x.to_json() for x in self.learning],
            "inputs": self.plain.inputs,
            "classes": self.plain.classes,
            "targets": self.plain.targets,
            "repeated": {"samples": self.repeated.samples, "distinct": self.repeated.distinct},
            "policy": self.policy.to_json(),
            "losses": self.losses,
            "updates": self.updates,
            "partial": self.partial,
        }

    # -- for a person ------------------------------------------------------------------------------------------

    def text(self) -> str:
        paint = Paint(self.colour)
        parts = [self._head(), *self._findings(paint), *self._shares(), *self._samples(paint)]
        parts += [*self._plain(), *self._learning(), *self._policy()]
        return "\n".join(parts).rstrip() + "\n"

    def _head(self) -> str:
        what = f"{counted(len(self.lessons), 'batch').replace('batchs', 'batches')}, {counted(self.rows, 'sample')}"
        wrong = [f for f in self.findings if f.severity != "info"]
        verdict = f"{counted(len(wrong), 'finding')}" if wrong else "nothing wrong was found"
        cut = "; the script ended early" if self.partial else ""
        return f"data: {what}: {verdict}{cut}\n"

    def _findings(self, paint: Paint) -> list[str]:
        lines = []
        for finding in self.findings:
            style = {"error": "bold red", "warning": "bold yellow"}.get(
                finding.severity.value, "bold blue"
            )
            lines.append(
                f"{paint(finding.code, style)} {finding.name} at {finding.at}\n  {finding.message}\n"
            )
        return lines

    def _shares(self) -> list[str]:
        shares = self.shares
        if not shares:
            return []
        mistaken = shares["padding learned"]
        among = f" ({mistaken:.0%} are padding that is learned too)" if mistaken else ""
        said = f"{shares['learned']:.0%} of the positions are learned{among}, {shares['ignored']:.0%} are read but not learned, {shares['padding']:.0%} are padding that is not learned"
        twice = self.repeated.samples - self.repeated.distinct
        again = f"; {twice} of {self.repeated.samples} samples came more than once" if twice else ""
        return [said + again + "\n"]

    def _samples(self, paint: Paint) -> list[str]:
        if not self.samples:
            return []
        kinds = {run.kind for sample in self.samples for run in sample.runs}
        marks = {"learned", "wrong"} if not self.colour else set()
        legend = ", ".join(
            paint(LEGEND[k], STYLES[k]) + (" «like this»" if k in marks else "")
            for k in LEGEND
            if k in kinds
        )
        lines = [f"what each token is taught ({legend}):"]
        for sample in self.samples:
            lines.append(
                f"  batch {sample.batch + 1}, sample {sample.row + 1}: {sample.learned} of {sample.tokens} tokens learned"
            )
            lines.append(
                "    "
                + "".join(self._run(run, paint) for run in sample.runs).replace("\n", "⏎\n    ")
            )
        return [*lines, ""]

    def _run(self, run: Run, paint: Paint) -> str:
        text = printable(run.text, keep="\n\t")
        if run.kind == "border":
            return paint(" ║ ", STYLES["border"])
        if run.kind == "padding":
            return paint(f"{text}×{run.tokens}", STYLES["padding"])
        if run.kind in ("learned", "wrong") and not self.colour:
            return f"«{text}»"
        return "\n".join(paint(line, STYLES[run.kind]) for line in text.split("\n"))

    def _plain(self) -> list[str]:
        lines = []
        if self.plain.inputs:
            i = self.plain.inputs
            shape = "×".join(map(str, i["shape"]))
            lines.append(
                f"inputs: {shape}, {i['least']:.3g} to {i['greatest']:.3g}, mean {i['mean']:.3g}, standard deviation {i['std']:.3g}"
            )
        if self.plain.classes:
            total = sum(self.plain.classes.values())
            most = sorted(self.plain.classes.items(), key=lambda c: -c[1])[:10]
            said = ", ".join(f"{c}: {n / total:.0%}" for c, n in most)
            more = (
                f" and {len(self.plain.classes) - 10} more" if len(self.plain.classes) > 10 else ""
            )
            lines.append(f"classes in {total} samples: {said}{more}")
        if self.plain.targets:
            t = self.plain.targets
            lines.append(
                f"targets: {t['least']:.3g} to {t['greatest']:.3g}, mean {t['mean']:.3g}, standard deviation {t['std']:.3g}"
            )
        return [*lines, ""] if lines else []

    def _learning(self) -> list[str]:
        lines = []
        for learning in self.learning:
            lines.append(f"what can learn in {learning.model}:")
            rows: list[tuple[str, ...]] = [
                ("", "parameters", "trainable", "with a gradient", "optimized")
            ]
            rows += [
                (
                    g.name,
                    *(f"{n:,}" for n in (g.parameters, g.trainable, g.with_gradient, g.optimized)),
                )
                for g in learning.groups
            ]
            widths = [max(len(r[i]) for r in rows) for i in range(5)]
            lines += [
                "  "
                + "  ".join(
                    c.rjust(w) if i else c.ljust(w)
                    for i, (c, w) in enumerate(zip(r, widths, strict=True))
                )
                for r in rows
            ]
            lines += [f"  note: {n}" for n in learning.notes]
        return [*lines, ""] if lines else []

    def _policy(self) -> list[str]:
        if not self.policy.pairs and self.policy.still is None:
            return []
        lines = ["log-probabilities of the same tokens:"] if self.policy.pairs else []
        for of, a in self.policy.pairs[:8]:
            lines.append(
                f"  trainer against {of}: {a.tokens:,} tokens, mean difference {a.mean:.2g} (rounding: {a.rounding:.2g}), ratio {a.ratio[0]:.3g} to {a.ratio[2]:.3g}, "
                f"{a.clipped:.0%} outside 0.8 to 1.2, KL {a.kl:.2g}"
            )
        if self.policy.still is not None:
            lines.append(
                f"  {self.policy.still:.0%} of the samples got no gradient: their group has no advantage"
            )
        if self.rewarded and self.losses and all(abs(loss) < 1e-3 for loss in self.losses[:1]):
            lines.append(
                "  a loss of 0 at the start of an update is normal for GRPO: the advantages of a group add up to zero while the ratio is 1. Its gradient is not zero"
            )
        return [*lines, ""]

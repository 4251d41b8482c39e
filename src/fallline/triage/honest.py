"""What is said where nothing is known: that it is not known, what is nearest to it, and which command or question finds out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fallline.triage.choose import Nearest
from fallline.triage.claim import Action
from fallline.triage.frame import Frame, speaks_of_things
from fallline.triage.judge import answers, speaks_of
from fallline.triage.playbook import Case, Step
from fallline.triage.words import tokens

__all__ = [
    "ASK_BACK",
    "NARROW",
    "NOT_OURS",
    "PERHAPS_OURS",
    "READ",
    "SHOW",
    "Reply",
    "known_of_it",
    "unknown",
]

_MOST = 3
NOT_OURS = (
    "This does not look like a question about PyTorch training, and fallline knows nothing else."
)
PERHAPS_OURS = "If it is one, paste the error message, or say what the run does."
ASK_BACK = "What do you see: an error message, a loss that is NaN, flat or rising, a run that is slow, or one that runs out of memory?"
NARROW = "Can you say it in one sentence: what happens, and what did you expect?"
WHOLE = "Which line of your own code is the last one in the traceback, and what does it compute?"
READ = Action(
    "Ask again with the file:", code='fallline ask "..." --code train.py', proof={"bash": "yes"}
)
SHOW = Action(
    "Paste the message or the loop, or let fallline look:",
    code="fallline check train.py     # reads the code\nfallline run train.py       # watches the run and names what goes wrong",
)


@dataclass(slots=True)
class Reply:
    """What a person reads first."""

    says: str
    verdict: str | None = None
    actions: list[Action] = field(default_factory=list)
    clarify: str | None = None
    claims: list[str] = field(default_factory=list)
    backs: tuple[str, ...] = ()
    ours: bool = True

    @property
    def answer(self) -> str:
        """The sentences with their yes or no."""
        word = {"yes": "Yes. ", "no": "No. ", "depends": "It depends. "}.get(self.verdict or "", "")
        said = bool(word) and re.match(rf"{word.split('.')[0]}\b", self.says) is not None
        return self.says if said else word + self.says


def known_of_it(
    cases: Sequence[Case], found: bool, text: str, told: bool, nearest: Nearest | None, frame: Frame
) -> Reply:
    """What the nearest case knows, or a question back."""
    if not cases and not found and nearest is None:
        return Reply(ASK_BACK, None, [SHOW], ASK_BACK)
    return _from_case(cases, text, told, nearest, frame)


def unknown(message: str) -> Reply:
    """A message that is not in the index gets no claim that only shares a word with it."""
    look = Action(
        "Print shape, dtype and device of everything on the last line of the traceback that is in your own file; on a GPU, run it once with `CUDA_LAUNCH_BLOCKING=1`, so that this line is the right one."
    )
    again = Action(
        "Ask again with the file, so that the code is read:", code=READ.code, proof=READ.proof
    )
    return Reply(
        f"fallline does not know this message: `{message}`. {WHOLE}", None, [look, again], WHOLE
    )


def _not_known(measure: Step | None, nearest: Nearest | None) -> Reply:
    """A question that nothing here answers gets no lecture on something near it; it is told what that is."""
    says = "fallline has no measured answer to this question"
    actions = []
    if nearest is not None:
        from shlex import quote

        says += f"; the nearest one that it has is to: {nearest.wording.rstrip('?. ')}"
        actions.append(
            Action(
                "If that is what you mean:",
                code=f"fallline ask {quote(nearest.wording)}",
                proof={"bash": "yes"},
            )
        )
    if measure is not None:
        actions.append(
            Action(
                "What can be found out about it:",
                code=measure.run,
                proof={"bash": "yes"} if measure.run.startswith("fallline") else {},
                see=measure.tells,
            )
        )
    return Reply(f"{says}. {NARROW}", None, actions or [SHOW], NARROW)


def _from_case(
    cases: Sequence[Case], text: str, told: bool, nearest: Nearest | None, frame: Frame
) -> Reply:
    """No claim knows the question: what its case knows, what to measure first, and the fix that comes first."""
    if not cases:
        return _not_known(None, nearest)
    case = cases[0]
    asked = {word[:5] for word in tokens(text)}

    def near(said: str) -> int:
        return len({word[:5] for word in tokens(said) if len(word) > 3} & asked)

    knows = sorted(case.knows, key=lambda s: -near(s.text))[:2]
    of_it = speaks_of_things(frame, " ".join(s.text for s in knows))
    if not (told or (of_it and (answers(text, knows) or speaks_of(text, case.texts())))):
        return _not_known(case.measure[0] if of_it else None, nearest)
    measure = case.measure[0]
    actions = [
        Action(
            "Measure first:" if "\n" in measure.run else f"Measure first: `{measure.run}`",
            code=measure.run if "\n" in measure.run else "",
            see=measure.tells,
        )
    ]
    fixes = sorted(case.fix, key=lambda f: -near(f"{f.title} {f.when}"))[: _MOST - 1]
    actions += [Action(f"{fix.title}.", fix.when, fix.code) for fix in fixes]
    backs = tuple(dict.fromkeys(name for s in knows for name in s.backs))
    return Reply(" ".join(s.text for s in knows), None, actions, None, [], backs)

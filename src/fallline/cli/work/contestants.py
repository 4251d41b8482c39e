"""Who is graded: `fallline ask` itself, or any agent behind a shell command, without and with the skills."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fallline.errors import UsageError
from fallline.report.answer import markdown
from fallline.specialists import SPECIALISTS
from fallline.triage.answer import SURE, answer
from fallline.triage.evaluate import Complaint, Scenario, grade
from fallline.triage.evidence import gather

__all__ = ["Column", "columns"]


@dataclass(frozen=True, slots=True)
class Column:
    """The grades of one contestant, by scenario."""

    name: str
    complaints: dict[str, list[Complaint]]


def columns(
    chosen: list[Scenario], agent: str | None, skills: str | None, timeout: float
) -> list[Column]:
    """Grade `ask`, or an agent; with `skills`, the agent without them and then with them."""
    if agent is None:
        return [Column("ask", {s.id: _ask(s) for s in chosen})]
    introductions = [("without skills" if skills else "agent", "")]
    if skills:
        introductions.append(("with skills", _router(Path(skills))))
    return [
        Column(name, {s.id: _agent(s, agent, before, timeout) for s in chosen})
        for name, before in introductions
    ]


def _ask(scenario: Scenario) -> list[Complaint]:
    reply = answer(scenario.question, gather(scenario.question))
    routes = [name for name, score in reply.routes if score >= SURE]
    # what people read is graded; the long form only for what it adds
    return grade(scenario, markdown(reply), routes, markdown(reply, more=True))


def _router(folder: Path) -> str:
    """The text of the skill that is not a specialist's: it says how to answer and where the others are."""
    specialists = {s.name for s in SPECIALISTS}
    found = [
        path
        for path in sorted(folder.glob("*/SKILL.md"))
        if not any(path.parent.name.endswith(name) for name in specialists)
    ]
    ours = [p for p in found if "fallline" in p.parent.name] or found
    if not ours:
        raise UsageError(f"{folder} has no router skill: run `fallline skills {folder}` first")
    text = ours[0].read_text(encoding="utf-8")
    return (
        f"{text.rstrip()}\n\nThe specialists' skills are folders in {folder.resolve()}.\n\n---\n\n"
    )


def _agent(scenario: Scenario, command: str, before: str, timeout: float) -> list[Complaint]:
    # its own session: at the time limit everything that the command started ends, not only the shell
    with subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate((before + scenario.question).encode(), timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return [Complaint(f"no answer within {timeout:g} seconds", kind="silence")]
    if process.returncode:
        said = " ".join(err.decode(errors="replace").split()[-30:])
        return [
            Complaint(
                f"the command ended with status {process.returncode}: {said or 'silence'}",
                kind="silence",
            )
        ]
    text = out.decode(errors="replace")
    if not text.strip():
        return [Complaint("the answer is empty", kind="silence")]
    return grade(scenario, text)

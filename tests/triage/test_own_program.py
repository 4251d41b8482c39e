"""Questions about the asker's own program: what its code and its run show rules, and nothing is said of it that they do not show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fallline.runs.store import Store
from fallline.runs.update import UpdateRow
from fallline.triage.answer import answer
from fallline.triage.claim import claims
from fallline.triage.evidence import gather
from fallline.triage.reply import Reply
from fallline.triage.seen import seen_in_code

SOUND = """\
import torch

model = torch.nn.Linear(4, 2)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(loader))
for epoch in range(3):
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
"""
CLIPS_LATE = SOUND.replace("        optimizer.step()\n", "").replace(
    "        torch.nn.utils", "        optimizer.step()\n        torch.nn.utils"
)
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
CLIPS = "does my code clip gradients correctly?"


def of_code(question: str, code: str, home: Path, run: str | None = None) -> Reply:
    file = home / "train.py"
    file.write_text(code)
    return answer(question, gather(question, [str(file)], run), run or "").reply


def watched(home: Path, clipped: int = 3) -> str:
    """A run of 100 updates, of which some were clipped at 1."""
    folder = home / "run"
    folder.mkdir()
    store = Store.create(folder, 0)
    store.updates(
        [
            UpdateRow(
                i, loss=2.0 / (i + 1), clip_norm=2.0 if i < clipped else 0.5, clip_threshold=1.0
            )
            for i in range(100)
        ]
    )
    store.close()
    return str(folder)


def test_what_is_right_is_named_with_its_line(tmp_path: Path) -> None:
    reply = of_code(CLIPS, SOUND, tmp_path)
    assert reply.answer.startswith("Yes. `clip_grad_norm_` in line 11"), reply.answer
    assert not reply.claims


def test_what_is_wrong_is_named_with_its_rule(tmp_path: Path) -> None:
    reply = of_code(CLIPS, CLIPS_LATE, tmp_path)
    assert reply.verdict == "no" and "FL101" in reply.answer


def test_what_is_not_there_is_not_judged(tmp_path: Path) -> None:
    reply = of_code(CLIPS, SOUND.replace(CLIP, ""), tmp_path)
    assert reply.verdict is None and "train.py holds no clipping" in reply.answer
    reply = of_code("is anything wrong with my resume code?", SOUND, tmp_path)
    assert reply.verdict is None and "train.py holds no resuming" in reply.answer


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("is my gradient clipping doing anything?", "gradient norm median 0.5"),
        ("is there anything wrong in this run?", "loss 2 →"),
        ("is my learning rate schedule right?", "Nothing wrong was found"),
        ("do I use the scaler right?", "Nothing wrong was found"),
    ],
)
def test_a_run_answers_with_what_it_measured(question: str, shown: str, tmp_path: Path) -> None:
    run = watched(tmp_path)
    reply = answer(question, gather(question, run=run), run).reply
    assert shown in reply.answer and not reply.claims, reply.answer


def test_a_run_gives_no_verdict_on_what_it_did_not_measure(tmp_path: Path) -> None:
    run = watched(tmp_path)
    question = "do I use the scaler right?"
    assert answer(question, gather(question, run=run), run).reply.verdict is None


def test_what_is_true_in_general_is_marked(tmp_path: Path) -> None:
    run = watched(tmp_path)
    question = "why is the gpu memory growing?"
    said = answer(question, gather(question, run=run), run).reply.answer
    assert said.startswith("Nothing wrong was found in the run") and "In general:" in said


@pytest.mark.parametrize("claim", [c for c in claims() if c.code], ids=lambda c: c.id)
def test_a_claim_about_a_program_needs_that_program(claim, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Whatever it is asked like: of a file in which its shape is not found it says nothing."""
    for wording in claim.asks[:1]:
        assert claim.id not in of_code(wording, SOUND, tmp_path).claims


def test_what_no_message_and_no_finding_shows_is_not_said_of_the_asker() -> None:
    stated = re.compile(
        r"(?i)\bhere it\b|\bas written\b|\bthe lines shown\b|\bwas replaced afterwards\b"
    )
    loose = [c.id for c in claims() if not c.messages and stated.search(c.says)]
    assert not loose


def test_a_schedule_in_updates_may_step_with_every_batch() -> None:
    in_epochs = SOUND.replace("3 * len(loader)", "3")
    assert "scheduler-steps-per-batch" in seen_in_code(in_epochs)
    assert "scheduler-steps-per-batch" not in seen_in_code(SOUND)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("should I use DDP or FSDP for a 1.3B model on 4x 24GB?", "FSDP: "),
        ("should I use DDP or FSDP for a 350M model on 4x 24GB?", "DDP: "),
        ("Is it ok to call zero_grad() before loss.backward()?", "Yes. "),
        ("validation accuracy is great but after loading the checkpoint it's at chance", "A loss as high as at the start, or an accuracy at chance, means that the weights did not arrive"),
    ],
)  # fmt: skip
def test_the_verdict_comes_first(question: str, first: str) -> None:
    assert answer(question).reply.answer.startswith(first)


def test_the_parts_of_a_plan_are_those_of_the_command() -> None:
    says = answer("How much GPU memory do I need to train a 7B model with AdamW?").reply.says
    assert "28.0 GB that the optimizer's step needs" in says and "1.7 GB for activations" in says
    assert "is enough" not in says

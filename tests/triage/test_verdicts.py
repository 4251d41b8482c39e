"""Yes and no: to the question that was asked, the way round it was asked, and to no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fallline.cli.main import main
from fallline.report.answer import text
from fallline.triage import answer
from fallline.triage.answer import Answer
from fallline.triage.claim import claims
from fallline.triage.evidence import gather

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
"""
RIGHT = f"""\
{HEAD}k = 4
for i, (x, y) in enumerate(loader):
    window = min(k, len(loader) - i // k * k)
    loss = nn.functional.mse_loss(model(x), y) / window
    loss.backward()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
# clips before it unscales (FL201), and drops the last window (FL107)
WRONG = f"""\
{HEAD}scaler = torch.amp.GradScaler("cuda")
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y) / 3
        scaler.scale(loss).backward()
        if (i + 1) % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def asked(question: str, code: str, folder: Path) -> Answer:
    file = folder / "train.py"
    file.write_text(code)
    return answer(question, gather(question, [str(file)]))


@pytest.mark.parametrize(
    ("question", "verdict"),
    [
        ("is my accumulation right?", "yes"),
        ("is my clipping right?", "yes"),
        ("is zero_grad in the right place?", "yes"),
        ("is my loop correct?", "yes"),
        ("am I clipping correctly?", "yes"),
        ("is there anything wrong with my clipping?", "no"),
        ("is my accumulation broken?", "no"),
        ("am I doing something wrong?", "no"),
    ],
)
def test_right_code_gets_no_prescription(question: str, verdict: str, tmp_path: Path) -> None:
    reply = asked(question, RIGHT, tmp_path).reply
    assert reply.verdict == verdict
    assert "nothing wrong was found in train.py" in reply.says and not reply.claims
    assert [a.code for a in reply.actions] == ["fallline run train.py"]


def test_what_is_not_in_the_code_is_not_judged(tmp_path: Path) -> None:
    reply = asked("is unscale_ in the right place?", RIGHT, tmp_path).reply
    assert reply.verdict is None and "nothing to judge" in reply.says


@pytest.mark.parametrize(
    ("question", "verdict", "code"),
    [
        ("is my clipping right?", "no", "FL201"),
        ("is unscale_ in the right place?", "no", "FL201"),
        ("is my loop correct?", "no", ""),
        ("is my accumulation ok?", "no", "FL107"),
        ("is something wrong with my clipping?", "yes", "FL201"),
        ("is my accumulation broken?", "yes", "FL107"),
        ("am I doing it wrong?", "yes", ""),
        ("why is the loss flat?", None, ""),
        ("should I clip before or after backward?", None, ""),
    ],
)
def test_a_finding_answers_the_way_round_it_was_asked(
    question: str, verdict: str | None, code: str, tmp_path: Path
) -> None:
    reply = asked(question, WRONG, tmp_path).reply
    assert reply.verdict == verdict
    assert re.match(rf"Line \d+: .*\({code or 'FL'}", reply.says), reply.says


def test_a_finding_about_something_else_is_no_verdict(tmp_path: Path) -> None:
    reply = asked("is my dropout right?", WRONG, tmp_path).reply
    assert reply.verdict is None and "train.py holds no dropout" in reply.says
    assert "But line" in reply.says


def test_the_code_of_a_step_is_its_own_fix(tmp_path: Path) -> None:
    for question in ("is my clipping right?", "is my accumulation right?", "is my loop correct?"):
        found = asked(question, WRONG, tmp_path)
        for action in found.reply.actions:
            assert not action.do.endswith(":") or action.code
            if "diff" in action.proof:
                assert "unscale" in action.do.lower() or "FL201" in action.do
                assert "do not repair FL107" in action.see
        printed = " ".join(text(found).split())
        assert "It worked if" not in printed and "no findings left" not in printed


@pytest.mark.parametrize(
    ("question", "verdict"),
    [
        ("is it ok to clip before unscale_?", "no"),
        ("is it wrong to clip before unscale_?", "yes"),
        ("do I have to unscale before clipping?", "yes"),
        ("do I have to unscale before clipping when I use bf16?", "no"),
        ("is it ok to clip after unscale_?", "yes"),
        ("do I need a GradScaler for bf16?", "no"),
        ("can I train bf16 without a GradScaler?", "yes"),
        ("bf16 does not need a GradScaler, right?", None),
        ("do I have to divide the loss by the accumulation steps?", "yes"),
        ("is dropout active in eval mode?", "no"),
        ("does dropout stay active if I wrap validation in torch.no_grad()?", "yes"),
        ("Should I call zero_grad before or after the scheduler step?", None),
        ("should I clip before or after backward", None),
        ("should I use bf16 or fp16?", None),
        ("is my gradient accumulation right?", None),
        ("can I call optimizer.step() twice?", None),
    ],
)
def test_a_claim_decides_only_what_it_answers(question: str, verdict: str | None) -> None:
    reply = answer(question).reply
    assert reply.verdict == verdict, reply.answer
    assert verdict is not None or not re.match(r"(?:Yes|No)\b", reply.answer)


@pytest.mark.parametrize(
    "question", ["is my accumulation right?", "are my gradients clipped right?"]
)
def test_without_the_code_nothing_is_judged(question: str) -> None:
    reply = answer(question).reply
    assert reply.verdict is None and reply.clarify and "--code" in reply.actions[0].code


def test_every_wording_hears_its_own_verdict() -> None:
    for claim in claims():
        for wording, verdict in claim.own.items():
            assert answer(wording).reply.verdict == verdict, (claim.id, wording)


@pytest.mark.parametrize(
    "question",
    [
        "just tell me a clip value, demo is tomorrow",
        "what max_norm should I use",
        "clip at 1.0 or 5.0?",
    ],
)
def test_a_number_is_given_with_its_condition(question: str) -> None:
    reply = answer(question).reply
    assert reply.verdict is None and "max_norm = 1.0" in reply.says
    assert "fallline measure clip" in reply.says


@pytest.mark.parametrize(
    "question", ["it doesnt work", "it does not work, help", "why is it broken"]
)
def test_a_complaint_gets_a_question(question: str) -> None:
    reply = answer(question).reply
    assert reply.ours and reply.clarify


@pytest.mark.parametrize(
    ("question", "verdict", "words"),
    [
        ("will a 7B fit for inference on 24 GB?", "yes", "inference"),
        ("will a 70B fit for inference on 24 GB?", "no", "inference"),
        ("can I finetune llama 7B with qlora on a 24GB 4090", "yes", "QLoRA"),
        ("can I finetune a 13B with LoRA on 24 GB?", "no", "LoRA on 13B"),
        ("does a full fine-tuning of 7B fit into 24 GB?", "no", "Full fine-tuning"),
        ("does a 7B fit on 24GB?", "depends", "LoRA"),
    ],
)
def test_what_fits_is_arithmetic(question: str, verdict: str, words: str) -> None:
    reply = answer(question).reply
    assert reply.verdict == verdict and words in reply.says


@pytest.mark.parametrize("train", ["lora", "qlora"])
@pytest.mark.parametrize("tokens", ["", " with sequence length 4096"])
def test_ask_and_plan_say_the_same(
    train: str, tokens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = answer(f"can I finetune a 7B with {train} on 24 GB{tokens}?").reply
    said = re.search(r"about ([\d.]+) GB", reply.says)
    command = reply.actions[0].code.split()
    assert said is not None
    assert main([*command[1:], "--output-format", "json"]) == 0
    assert float(said[1]) == round(json.loads(capsys.readouterr().out)["total"], 1)


def test_of_a_watched_run_the_operation_and_its_remedy(tmp_path: Path) -> None:
    found = {
        "code": "FL620", "name": "nonfinite-forward", "severity": "error", "path": "train.py", "line": 15, "column": 1, "end_line": 15, "end_column": 2,
        "specialist": "debugging-techniques", "fix": None, "evidence": {"op": "log", "step": 1, "module": ""},
        "message": "The loss is nan at update 1: the first non-finite result is that of log (input from 0 to 0.9997).",
    }  # fmt: skip
    (tmp_path / "findings.json").write_text(json.dumps([found]))
    question = "why is my loss nan?"
    printed = text(answer(question, gather(question, run=str(tmp_path)), run=str(tmp_path)))
    flat = " ".join(printed.split())
    assert "Line 15" in flat and "`log` in line 15" in flat and "clamp_min" in flat
    assert "fallline run" not in flat and "checkpoint" not in flat

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
        # the other side of what a claim answers
        ("is dropout disabled in eval mode?", "yes"),
        ("does model.eval() turn dropout on?", "no"),
        ("should dropout be off during validation?", "yes"),
        ("does DDP average the gradients over the ranks?", "yes"),
        ("should backward be outside autocast?", "yes"),
        ("does model.eval() turn dropout off", "yes"),
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


@pytest.mark.parametrize(
    ("question", "verdict"),
    [
        ("We validate under torch.no_grad() without model.eval(). Is it ok?", None),
        (
            "We evaluate with torch.no_grad() only. I think I need model.eval() as well if I already use torch.no_grad(). Am I right?",
            "yes",
        ),
        ("explained variance drops to negative sometimes. Is this normal?", "yes"),
        ("Shouldn't test data be normalised with the mean and std of the training data?", "yes"),
        (
            "With bf16 parameters the weight decay is smaller than what bf16 can represent. Is this true?",
            "yes",
        ),
    ],
)
def test_a_question_about_the_sentence_before_it(question: str, verdict: str | None) -> None:
    assert answer(question).reply.verdict == verdict


def test_of_wordings_that_ask_opposite_things_the_nearer_one_decides() -> None:
    own = answer("should I normalise the test set with its own mean and std?").reply
    theirs = answer("should I normalise the test set with the training mean and std?").reply
    assert (own.verdict, theirs.verdict) == ("no", "yes") and own.claims == theirs.claims


def test_an_open_question_gets_no_yes_or_no() -> None:
    reply = answer("zero_grad is called after the loss. How can the loss still go backward?").reply
    assert reply.claims and not re.match(r"(?:Yes|No)\b", reply.answer)


def test_two_questions_get_two_answers_and_one_gets_one() -> None:
    both = "Is a sigmoid needed before BCEWithLogitsLoss? And which weight decay should I use with AdamW?"
    first, second = answer(both).reply.claims
    assert first == "softmax-before-ce" and second.startswith("weight-decay")
    one = "Which weight decay should I use with AdamW? Thanks for any help, is there a paper on it?"
    assert len(answer(one).reply.claims) == 1


@pytest.mark.parametrize(
    "question",
    [
        "KerasTuner: the best epoch is chosen on the validation loss and the hyperparameters are ranked by it, is that leakage?",
        "I want to implement the backward pass of the gradient penalty in mlpack wgangp_impl.hpp, how?",
        "How can I freeze one or more layers of a network during training in Torch7 (Lua)?",
        "My loss is nan from the second epoch\n800/800 [=========] - 2s - loss: nan - acc: 0.1 - val_loss: nan - val_acc: 0.1",
        "XGBoost4J stops too early in training: does early stopping ignore its number of rounds?",
        "In AlexeyAB's darknet the loss is higher after a restart on two GPUs, why?",
        "matterport Mask R-CNN loses accuracy when training is resumed from a checkpoint, why?",
    ],
)
def test_other_libraries_are_not_answered_as_torch(question: str) -> None:
    assert not answer(question).reply.ours


@pytest.mark.parametrize(
    ("question", "says", "never"),
    [
        ("With ModelEMAV2 and decay 0.99999 for 25k iterations it is worse than expected. I fixed it following optax with bias correction. Bug or misuse?", "0.99999", "not look like"),
        ("The loss falls into a constant 0 and the run is fine otherwise. Is there any problem?", "", "Change nothing"),
        ("We train a 1B model with 230 GB of bilingual data. After 42k iterations the loss spiked and exploded; a lower LR and more warmup did not help.", "", "--card"),
        ("Pretraining on 230 GB of text: after 42k iterations the loss spiked and exploded; we tried to resume, a lower LR and more warmup.", "before the gradient norm", "--card"),
        ("Can I fine-tune a 7B model fully on 24 GB with 100 GB of text data?", "into 24 GB", "100 GB"),
        ("loss is decreasing from 2.3 to 0.5, is this fine?", "Change nothing", "constant"),
        ("Does a 7B model fit for full fine-tuning with 230 GB of data?", "", "--card 230"),
        ("I think `ratio` in ppo.py should be detached:\n```python\nsurr1 = ratio.detach() * advantage\n```\nshould it be ratio.detach()?", "no gradient at all", "cheaply"),
    ],
)  # fmt: skip
def test_special_cases(question: str, says: str, never: str) -> None:
    reply = answer(question, gather(question)).reply
    told = " ".join([reply.answer, *(f"{a.do} {a.code}" for a in reply.actions)])
    assert says in told and never not in told


def test_a_graph_kept_for_the_step_that_was_not_pasted() -> None:
    step = "fake = gen(noise)\nloss_critic = critic(fake).mean() - critic(real).mean()\ncritic.zero_grad()\nloss_critic.backward(retain_graph=True)\nopt_critic.step()\n"
    told = gather(f"one backward for the critic or two?\n```python\n{step}```")
    assert not any(f.code == "FL403" for f in told.findings)
    other = step.replace("critic", "head").replace("gen(", "trunk(")
    alone = gather(f"is this right?\n```python\n{other}```")
    assert any(f.code == "FL403" for f in alone.findings)


def test_who_learns_too_slowly_is_not_told_to_step_less() -> None:
    code = """\
net = nn.Sequential(nn.Linear(784, 800), nn.Sigmoid(), nn.Linear(800, 10), nn.Sigmoid())
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for images, labels in loader:
    optimizer.zero_grad()
    for i in range(32):
        loss = nn.functional.mse_loss(net(images[i]), labels[i])
        loss.backward()
    optimizer.step()
"""
    question = (
        f"the network outputs the mean for every input and does not learn\n```python\n{code}```"
    )
    evidence = gather(question)
    told = " ".join([(r := answer(question, evidence).reply).answer, *(a.do for a in r.actions)])
    assert "0.001 times its gradient" in told and "FL104" not in told


def test_a_dead_run_is_not_called_normal() -> None:
    reply = answer(
        "In my GRPO run loss=0, kl=0 and grad_norm=0 all the time, the reward is fine. Why?"
    ).reply
    assert "does not train" in reply.answer and "the model trains" not in reply.answer


def test_torch_named_beside_another_library_stays_ours() -> None:
    assert answer("I ported matterport Mask R-CNN to PyTorch and the loss is nan, why?").reply.ours

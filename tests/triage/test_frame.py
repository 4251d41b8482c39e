"""What a question is about decides which claim may answer it; where none may, the reply says so and names the nearest."""

from __future__ import annotations

import pytest

from fallline.triage.answer import answer
from fallline.triage.arithmetic import reckoned
from fallline.triage.choose import Nearest
from fallline.triage.claim import claims
from fallline.triage.frame import agreement, at_home, framed
from fallline.triage.honest import known_of_it

NUMBER = {claim.id: n for n, claim in enumerate(claims())}


def test_a_frame_has_the_things_and_what_they_do() -> None:
    frame = framed("my validation loss is NaN with bf16 and LoRA, it plateaued before")
    assert {"validation", "loss", "precision", "lora"} <= frame.things
    assert {"nan", "stuck"} <= frame.signs


def test_names_in_code_are_things_too_but_what_code_says_is_no_sign() -> None:
    frame = framed(
        "why is it scaled?", "kd = F.kl_div(student_logits, teacher_logits)\nerror = None"
    )
    assert "distillation" in frame.things and not frame.signs


def test_a_claim_has_its_subject_from_its_wordings() -> None:
    about_norms = framed("per-sample gradients with vmap and BatchNorm")
    about_others = framed("per-sample gradients with vmap break my indexing")
    claim = NUMBER["vmap-batchnorm"]
    assert agreement(claim, about_norms).own > 0.9 > agreement(claim, about_others).own


@pytest.mark.parametrize(
    ("asked", "never"),
    [
        (
            "vmap over my loss breaks indexing\n\nFor per-sample gradients I call vmap on grad, and x[:, 0] fails because a dimension is gone.",
            "vmap-batchnorm",
        ),
        (
            "QAT model is bad after convert\n\nWith fake quantisation the accuracy is good; the converted model gives bad results.",
            "eval-mode-is-worse",
        ),
        (
            "The EMA copy refuses to learn\n\nThe weights of the moving average seem not to be updated, its loss plateaus.",
            "ema-ddp",
        ),
    ],
)
def test_a_claim_about_something_else_is_not_given(asked: str, never: str) -> None:
    assert never not in answer(asked).reply.claims


def test_what_is_not_known_is_said_with_the_nearest_question_and_a_command() -> None:
    claim = claims()[0]
    near = Nearest(claim, claim.asks[0])
    reply = known_of_it([], False, "", False, near, framed(""))
    assert reply.claims == [] and reply.clarify
    assert "no measured answer" in reply.answer and "nearest" in reply.answer
    assert any(a.code.startswith("fallline ask ") for a in reply.actions)


def test_documentation_is_no_answer_to_a_complaint() -> None:
    asked = "With `group_by_length` the loss goes up and down like a sawtooth, is that normal?"
    assert "is a value of" not in answer(asked).reply.answer
    assert (
        "length_column_name" in answer("what does `length_column_name` do in Trainer?").reply.answer
    )


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("two teachers: do I average the logits before the softmax for the student?", True),
        ("Trainer shows a huge number of epochs with a streaming dataset", True),
        ("laptop freezes", False),
        ("gradient background in powerpoint", False),
    ],
)
def test_two_things_of_training_make_a_question_ours(asked: str, ours: bool) -> None:
    assert at_home(framed(asked)) is ours
    assert answer(asked).reply.ours is ours


def test_a_set_up_in_a_long_post_is_no_question_about_memory() -> None:
    story = " ".join(
        ["The loss looks healthy and falls slowly, as in the last runs of this project."] * 6
    )
    setup = (
        "31B model on one GPU of 80 GB, per_device_batch_size=1, accumulation 8, optim adamw_8bit."
    )
    spike = f"grad_norm spikes to 11000 on one step of LoRA\n{story}\n{setup}\nIs the gradient norm normal?"
    assert reckoned(spike) is None
    fits = f"Does a 31B model fit on one GPU?\n{story}\n{setup}"
    assert reckoned(fits) is not None

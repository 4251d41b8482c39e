"""What the installed libraries say of themselves is found in their sources, and given where nothing measured is known."""

from __future__ import annotations

import sys

import pytest

from fallline.triage.answer import answer
from fallline.triage.library import documented, names_in, raised_by, refused_keyword
from fallline.triage.library.said import in_words


def test_nothing_of_a_library_is_imported() -> None:
    before = set(sys.modules)
    assert documented("persistent_workers", "") is not None
    assert raised_by("ValueError: optimizer got an empty parameter list", "") is not None
    assert not {m for m in set(sys.modules) - before if m.partition(".")[0] in ("lightning", "trl")}


@pytest.mark.parametrize(
    ("message", "where", "condition"),
    [
        (
            "ValueError: optimizer got an empty parameter list",
            "torch.optim.optimizer.Optimizer.__init__",
            "`len(param_groups)` is `0`",
        ),
        (
            "ValueError: Attempting to unscale FP16 gradients.",
            "torch.amp.grad_scaler.GradScaler._unscale_grads_",
            "`param.grad.dtype` is `torch.float16`",
        ),
        (
            "Checkpoint directory /home/me/out exists and is not empty.",
            "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint.__warn_if_dir_not_empty",
            "`self.save_top_k` is not `0`",
        ),
    ],
)
def test_a_message_leads_to_its_function_and_condition(
    message: str, where: str, condition: str
) -> None:
    site = raised_by(message, message)
    assert site is not None
    assert site.where == where
    assert condition in " and ".join(site.tests)


def test_the_values_of_a_paste_are_read() -> None:
    site = raised_by("Checkpoint directory /home/me/out exists and is not empty.", "")
    assert site is not None
    assert site.values == {"dirpath": "/home/me/out"}


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'loss'",
        "how do I cook rice in the evening for many people",
        "ValueError: my own message about the colour of the sky",
    ],
)
def test_what_no_library_says_is_not_found(text: str) -> None:
    assert raised_by(text, text) is None


@pytest.mark.parametrize(
    ("name", "around", "owner", "default", "text"),
    [
        ("find_unused_parameters", "", "DistributedDataParallel", "False", "autograd graph"),
        ("persistent_workers", "", "DataLoader", "False", "worker processes"),
        ("T_max", "", "CosineAnnealingLR", None, "Maximum number of iterations"),
        ("label_smoothing", "cross_entropy", "cross_entropy", "0.0", "smoothing"),
        ("use_reentrant", "checkpoint", "checkpoint", "None", "reentrant autograd"),
        ("accumulate_grad_batches", "lightning", "Trainer", "1", "k batches"),
        ("dataloader_num_workers", "", "TrainingArguments", "0", "subprocesses"),
    ],
)
def test_an_argument_is_documented(
    name: str, around: str, owner: str, default: str | None, text: str
) -> None:
    entry = documented(name, f"what is {name} of {around}")
    assert entry is not None
    assert (entry.owner, entry.default) == (owner, default)
    assert text in entry.text


def test_a_keyword_that_is_gone_is_compared_with_what_is_taken() -> None:
    said = "TypeError: TrainingArguments.__init__() got an unexpected keyword argument"
    refused = refused_keyword(f"{said} 'evaluation_strategy'")
    assert refused is not None
    assert "eval_strategy" in refused.near
    reply = answer(f"{said} 'evaluation_strategy'").reply
    assert "`eval_strategy`" in reply.answer


def test_names_are_those_of_an_api() -> None:
    assert names_in("what does `T_max` of CosineAnnealingLR do with num_workers=4?") == [
        "T_max",
        "CosineAnnealingLR",
        "num_workers",
    ]
    assert names_in("why is my loss so high after the first epoch?") == []


def test_the_answer_quotes_library_version_and_default() -> None:
    said = answer("what does in_order do?").reply.answer
    assert said.startswith("`in_order` of `DataLoader` (torch 2.")
    assert "default `True`" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("not x", "`x` is not set"),
        ("a is None and b > 3", "`a` is `None` and `b` is more than `3`"),
        ("not (a or b)", "`a` is not set and `b` is not set"),
        ("isinstance(x, (int, str))", "`x` is a `int` or `str`"),
        ("hasattr(x, 'step')", "`x` has `step`"),
    ],
)
def test_a_condition_in_words(code: str, words: str) -> None:
    import ast

    assert in_words(ast.parse(code, mode="eval").body) == words

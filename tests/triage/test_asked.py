"""A post is read for what it asks: its questions, what they are about, and what is only told."""

from __future__ import annotations

from fallline.triage.answer import answer
from fallline.triage.asked import Asked, questions_in
from fallline.triage.post import Post

STORY = """Loss behaves strangely

Hi all, thanks for your great work!
I train a segmentation network on my own images. I do not call `model.eval()` before the validation.
Does it matter?

Any help is appreciated.
"""


def test_a_question_that_names_nothing_is_about_the_sentence_before_it() -> None:
    asked = Asked.of(Post.of(STORY).prose)
    assert asked.questions == (
        "I do not call `model.eval()` before the validation. Does it matter?",
    )
    assert all("appreciated" not in s and "thanks" not in s for s in (*asked.case, asked.text))


def test_asking_for_help_asks_nothing() -> None:
    asked = Asked.of("the loss is nan\nthe loss is nan after an epoch.\ncan anyone help me?")
    assert asked.questions == () and asked.complaints == ("the loss is nan after an epoch.",)


def test_what_is_told_is_not_what_is_asked() -> None:
    post = """Which learning rate for AdamW?

My GPU memory grew last week and I fixed that. Before, the loss was NaN with fp16. Now I fine-tune BERT.
What learning rate do people use for AdamW there?
"""
    assert "memory" not in Asked.of(Post.of(post).prose).text


def test_a_line_that_is_full_goes_on_in_the_next_one() -> None:
    first = "why is the validation loss of my transformer so much lower than the"
    asked = Asked.of(f"question about two curves\n{first}\ntraining loss in every epoch?")
    assert asked.title == "question about two curves"
    assert asked.questions == (f"{first} training loss in every epoch?",)


def test_links_say_nothing() -> None:
    linked = "Why is it slow?\n\nSee https://github.com/x/main_amp.py#L1 and [the loader](https://y.org/gan.py)."
    assert "amp" not in Post.of(linked).prose and "the loader" in Post.of(linked).prose


def test_headings_of_a_form_ask_nothing() -> None:
    form = "Early stopping\n\n#### What is your question?\nHow do I monitor two metrics?\n#### What have you tried?\nNothing."
    assert Asked.of(Post.of(form).prose).questions == ("How do I monitor two metrics?",)


def test_several_questions_are_found_without_question_marks() -> None:
    post = "Multi GPU\n\nWhat should I change in the learning rate with 4 GPUs? And I wonder how to enable SyncBatchNorm between them."
    assert len(questions_in(Post.of(post).prose)) == 2


def test_each_question_has_its_answer_below_it() -> None:
    post = "Two things\n\n1) Does DDP average the gradients over the GPUs?\n2) Should I exclude LayerNorm and biases from weight decay?"
    reply = answer(post).reply
    assert len(reply.claims) == 2 and reply.answer.count("\n") == 1
    assert all(question in reply.answer for question in ("Does DDP average", "exclude LayerNorm"))

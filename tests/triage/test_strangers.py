"""Questions as strangers write them: a title and a story, a message that nobody knows, a curve in a picture."""

from __future__ import annotations

from fallline.triage.answer import answer
from fallline.triage.words import Said, phrases, spelled, tokens


def test_words_of_a_claim_must_meet_in_one_part_of_a_long_question() -> None:
    story = (
        "question about batch size and lr\n\nIn your paper you trained on 4 GPUs with a batch size of 12. "
        "So I assume the batch size is per gpu. In this case, if I use 2 GPUs instead of 4, should I also reduce the learning rate by half?"
    )
    claims = answer(story).reply.claims
    assert claims == ["gpus-batch-and-rate"]  # and nothing about model.half()


def test_a_message_that_is_not_known_gets_no_claim_by_accident() -> None:
    asked = "Backward call fails when I train\n\nRuntimeError: Expected isFrobnicated(grads[i]) to be true, but got false"
    reply = answer(asked).reply
    assert reply.claims == [] and "does not know this message" in reply.answer
    assert "isFrobnicated" in reply.answer and reply.clarify


def test_a_curve_without_numbers_gets_a_question_back() -> None:
    reply = answer(
        "About training loss curve: is this normal?\n\nThe loss behaves like this:"
    ).reply
    assert reply.claims == ["curve-in-a-picture"] and reply.clarify


def test_a_whole_checkpoint_is_told_by_its_names() -> None:
    keys = 'Missing key(s) in state_dict: "conv.weight"\n\tUnexpected key(s) in state_dict: "weight", "epoch", "opt_g".'
    assert answer(keys).reply.claims == ["whole-checkpoint-loaded"]
    plain = 'Missing key(s) in state_dict: "conv.weight"\n\tUnexpected key(s) in state_dict: "conv1.weight".'
    assert answer(plain).reply.claims == ["missing-keys"]


def test_a_card_is_named_where_none_was_given() -> None:
    says = answer(
        "GPU configuration\n\nWhat GPU configuration is required to train the 345M model"
    ).reply.says
    assert "345M" in says and "5.5 GB" in says


def test_a_number_is_one_word() -> None:
    assert tokens("accuracy is 0.80") == ["accuracy", "is", "0.80"]
    said: Said = spelled(tokens("accuracy is 0.80"))
    assert not phrases("0").found_in(said) and phrases("0.80").found_in(said)
    assert phrases("acc*").found_in(said) and phrases("accuracy ... 0.80").found_in(said)

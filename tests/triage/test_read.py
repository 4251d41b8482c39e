"""What an asker already said: logs as series, what was tried, which of several errors came first."""

from __future__ import annotations

import pytest

from fallline.triage.answer import answer
from fallline.triage.done import done_in
from fallline.triage.evidence import gather
from fallline.triage.logs import columns
from fallline.triage.numbers import shown

NAN = "\n".join(
    f"12:00:01 INFO iteration={n} loss={0.41 if n < 103 else 'nan'}" for n in range(100, 106)
)
LOGS = {
    "epoch 0 loss = 2.3085\nepoch 1 loss = 2.2973\nepoch 2 loss = 2.3083\nepoch 3 loss = 2.3027": "loss at chance",
    NAN: "loss nan at once",
    "Iter: [000/900] loss_a 1.1 loss_total 1.3\nIter: [100/900] loss_a 4.1 loss_total 9.5\nIter: [200/900] loss_a nan loss_total nan": "loss nan after growth",
    "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.1}\n{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.2}\n{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.3}": "norm nan always",
    "Epoch 1/9\n3s - loss: 0.90 - val_loss: 0.80 - val_acc: 0.70\nEpoch 2/9\n3s - loss: 0.50 - val_loss: 0.70 - val_acc: 0.74\n"
    "Epoch 3/9\n3s - loss: 0.20 - val_loss: 0.90 - val_acc: 0.75\nEpoch 4/9\n3s - loss: 0.10 - val_loss: 1.20 - val_acc: 0.76": "val score rises beside its loss",
    "Epoch\tTraining Loss\tValidation Loss\n1\t0.9\t0.7\n2\t0.5\t0.6\n3\t0.3\t0.8\n4\t0.2\t0.9": "val loss turns",
    "Epoch 4:  1%| | 1/79 [00:00<01:00, 1.3it/s, loss=16.8, v_num=1]\nEpoch 4:  2%| | 2/79 [00:00<01:00, 1.3it/s, loss=16.9, v_num=1]\nEpoch 4:  3%| | 3/79 [00:00<01:00, 1.3it/s, loss=16.8, v_num=1]": "loss flat",
    "At iter 99 it uses 3200mb of memory, at iter 219 it jumps to 7000mb of memory, at iter 5199 the memory is 10gb.": "memory grows",
    "the loss stays constant at 0.693 from the first epoch": "loss at chance",
    "Epoch 7/9\n - 80s - loss: 14.5 - acc: 0.1000\nEpoch 8/9\n - 80s - loss: 14.5 - acc: 0.1000\nEpoch 9/9\n - 80s - loss: 14.5 - acc: 0.1000": "loss at chance",
}


@pytest.mark.parametrize("log", LOGS, ids=LOGS.values())
def test_a_log_shows(log: str) -> None:
    assert LOGS[log] in shown(log)


def test_the_place_of_a_nan_is_said() -> None:
    assert (
        "from iteration 103 on" in answer(f"Getting loss = nan after a while\n\n{NAN}").reply.answer
    )
    assert [c.at[0] for c in columns(NAN)] == ["iteration 100"]


def test_code_and_sentences_are_no_log() -> None:
    assert not shown("loss = criterion(out, y)\nloss = 0.5 * loss\nlr = 0.01\nlr = 0.1\nlr = 0.2")
    assert not shown("my loss is 0.5 and the accuracy is 0.9 after epoch 3")


def test_what_was_tried_is_not_recommended() -> None:
    tried = done_in("I already reduced the learning rate. It still fails with batch size 1.", "")
    assert {m.label for m in tried.measures} == {"a lower learning rate", "a smaller batch"}
    assert not done_in("Should I lower the learning rate?", "").measures
    assert not done_in("I save the model only, without the optimizer.", "").measures
    resumed = "Loss goes up after resuming\nI call opt.load_state_dict(ckpt['opt']) and the model is loaded too. The loss jumps after resume."
    assert answer(resumed).reply.claims == ["resumed-with-everything-and-jumps"]


def test_the_first_of_several_errors_decides() -> None:
    first = "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed)."
    second = "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [32, 32]], which is output 0 of AsStridedBackward0, is at version 2; expected version 1 instead."
    asked = (
        f"such an error occurs:\n{first}\nwith retain_graph=True another error occurs:\n{second}"
    )
    assert answer(asked).reply.claims == ["retain-graph"]
    assert answer(f"why?\n{second}").reply.claims == ["inplace-by-step"]


def test_a_score_that_stays_does_not_rise() -> None:
    log = "\n".join(
        f"Epoch {n}/4\n3s - loss: {1 / n:.2f} - val_loss: {n}.50 - val_acc: 0.5676"
        for n in (1, 2, 3, 4)
    )
    assert "val loss rises" in shown(log) and "val score rises beside its loss" not in shown(log)


def test_a_message_is_read_where_it_has_its_values() -> None:
    """A traceback also shows the line that raises it."""
    pasted = (
        '  File "lr_scheduler.py", line 1571, in get_lr\n'
        '    raise ValueError("Tried to step {} times. The specified number of total steps is {}"\n'
        "ValueError: Tried to step 602 times. The specified number of total steps is 600"
    )
    assert "built for 600 steps and is asked for step 602" in answer(pasted).reply.answer


def test_a_message_needs_no_full_stop() -> None:
    said = answer("I get Attempting to unscale FP16 gradients on one 32GB V100 with a 7B model")
    assert "float32" in said.reply.answer


@pytest.mark.parametrize(
    "question",
    [
        "A Keras model, its val_accuracy stays\n```\nmodel = Sequential()\nmodel.fit(x, y)\n```",
        "SettingWithCopyWarning in a groupby\n```python\nimport pandas as pd\ndf = pd.DataFrame()\nfor _, g in df.groupby('c'):\n    g['x'] = 1\n```",
        "jax.errors.ConcretizationTypeError\n```python\nbudget = jnp.array(2000)\nsolution = find(budget)\n```",
    ],
)
def test_code_of_another_library_makes_no_question_ours(question: str) -> None:
    assert not answer(question, gather(question)).reply.ours

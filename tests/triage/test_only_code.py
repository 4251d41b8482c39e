"""Questions that are nothing but code: a fragment without its loop is read as the inside of one, and what is clean gets no lecture."""

from __future__ import annotations

import pytest

from fallline.triage.answer import answer
from fallline.triage.evidence import gather
from fallline.triage.pasted import end_of_update, in_a_loop
from fallline.triage.post import Post

CLIPS_SCALED = """\
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()"""
FREEZES_NOTHING = "self.model.head.requires_grad = False"
EVERY_K = """\
scaler.scale(loss).backward()
if ni % accumulate == 0:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()"""
CLEAN = """\
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()"""


def said(question: str) -> str:
    return answer(question, gather(question)).reply.answer


@pytest.mark.parametrize(
    ("code", "idea"),
    [(CLIPS_SCALED, "FL201"), (FREEZES_NOTHING, "requires_grad_(False)"), (EVERY_K, "divided")],
)
def test_a_mistake_in_a_fragment_is_named(code: str, idea: str) -> None:
    assert idea in said(code)


def test_lines_are_those_of_the_fragment() -> None:
    assert said(CLIPS_SCALED).startswith("Line 2:")
    changed = gather(CLIPS_SCALED).corrected
    assert changed is not None and changed.startswith("scaler.scale(loss).backward()\nscaler.unscale_")  # fmt: skip


def test_clean_code_gets_no_lecture() -> None:
    assert "nothing wrong was found" in said(CLEAN)


@pytest.mark.parametrize("prose", ["loss = nan", "help", "num_workers", "model.eval", "e.g. this"])
def test_words_that_parse_are_no_code(prose: str) -> None:
    assert Post.of(prose).code == ""


def test_only_the_inside_of_a_loop_is_put_into_one() -> None:
    assert in_a_loop(EVERY_K) == "for ni, batch in enumerate(loader):"
    assert in_a_loop(f"for x in loader:\n    {CLEAN.splitlines()[2]}") == ""
    assert in_a_loop("model = Net()") == ""


STOPS_EARLY = """\
with autocast():
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.unscale_(opt)"""
LOOP_STOPS_EARLY = "for x, y in loader:\n    opt.zero_grad()\n    " + STOPS_EARLY.replace(
    "\n", "\n    "
)


@pytest.mark.parametrize("code", [STOPS_EARLY, LOOP_STOPS_EARLY])
def test_what_was_not_pasted_is_not_missing(code: str) -> None:
    found = gather(f"the loss turns to nan after some epochs\n```python\n{code}\n```")
    assert not found.serious and found.cut and found.corrected is None


def test_a_mistake_before_the_cut_is_still_found() -> None:
    late = f"{STOPS_EARLY}\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    early = late.replace("scaler.unscale_(opt)\n", "")
    assert not gather(late).serious
    assert "FL201" in {f.code for f in gather(early).serious}


def test_only_an_excerpt_that_stops_before_its_step_gets_an_end() -> None:
    assert end_of_update(STOPS_EARLY).split() == "scaler.step(opt) scaler.update() opt.zero_grad()".split()  # fmt: skip
    assert end_of_update(LOOP_STOPS_EARLY) == "\n    scaler.step(opt)\n    scaler.update()"
    assert end_of_update(CLEAN) == end_of_update("model = Net()") == ""
    assert end_of_update(f"{LOOP_STOPS_EARLY}\nprint('done')") == ""  # the loop is over
    assert end_of_update(f"opt = torch.optim.SGD(model.parameters())\n{LOOP_STOPS_EARLY}") == ""


@pytest.mark.parametrize("rest", ["    loss = criterion(model(x), y)", "    ...\n    loss.backward()\n    opt.step()\n    opt.zero_grad()"])  # fmt: skip
def test_an_excerpt_is_not_called_right(rest: str) -> None:
    text = said(f"Is my loop right?\n```python\nfor x, y in loader:\n{rest}\n```")
    assert "excerpt" in text and "nothing wrong" not in text

"""The fixes of the precision and distributed rules: what they write, and where they rather write nothing."""

from __future__ import annotations

import textwrap

import pytest

from fallline.syntax.edits import apply
from fallline.verdict.reading import read_text

HEAD = """\
import torch
import torch.nn as nn

def make():
    model = nn.Linear(8, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

model, optimizer = make()
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)
"""
DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)
"""


def fixed(code: str, body: str, head: str = HEAD) -> str | None:
    """The body after the fix of its one finding of this code; None where there is no fix."""
    text = head + textwrap.dedent(body)
    (finding,) = [f for f in read_text(text) if f.code == code]
    if finding.fix is None:
        return None
    after = apply(text, finding.fix.edits)
    assert after is not None
    assert code not in {f.code for f in read_text(after)}
    return after.replace(head, "")


def test_unscale_goes_where_the_step_is_guarded() -> None:
    after = fixed(
        "FL201",
        """\
        def train(scaler):
            for x in loader:
                optimizer.zero_grad()
                loss = model(x).mean()
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
        """,
    )
    assert after is not None
    assert (
        "if scaler is not None:\n            scaler.unscale_(optimizer)\n        nn.utils.clip"
        in after
    )


def test_unscale_goes_before_a_loop_of_clips() -> None:
    after = fixed(
        "FL201",
        """\
        for x in loader:
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            for group in optimizer.param_groups:
                nn.utils.clip_grad_norm_(group["params"], 1.0)
            scaler.step(optimizer)
            scaler.update()
        """,
    )
    assert after is not None
    assert "    scaler.unscale_(optimizer)\n    for group in" in after


def test_a_clip_in_a_helper_is_left_to_people() -> None:
    body = """\
    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        clip()
        scaler.step(optimizer)
        scaler.update()
    """
    assert fixed("FL201", body) is None


def test_what_follows_the_backward_leaves_autocast_with_it() -> None:
    after = fixed(
        "FL205",
        """\
        for x in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).mean()

                # the way back
                scaler.scale(loss).backward()
                scaler.step(optimizer)  # and on
                scaler.update()
            optimizer.zero_grad()
        """,
    )
    assert after is not None
    assert (
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)  # and on\n    scaler.update()\n    optimizer"
        in after
    )


@pytest.mark.parametrize(
    "rest",
    [
        "other = model(x)",  # would leave autocast too
        'print(f"""\n{loss}\n""")',  # the string would move
        "norm = model.weight @ model.weight.t()",
    ],
)
def test_a_forward_pass_stays_under_autocast(rest: str) -> None:
    body = "for x in loader:\n    optimizer.zero_grad()\n    with torch.autocast('cpu', dtype=torch.bfloat16):\n        loss = model(x).mean()\n"
    body += (
        "        loss.backward()\n" + textwrap.indent(rest, "        ") + "\n    optimizer.step()\n"
    )
    text = HEAD + body
    (finding,) = [f for f in read_text(text) if f.code == "FL205"]
    assert finding.fix is None


def test_the_scaler_keeps_its_name() -> None:
    after = fixed(
        "FL203",
        """\
        class Trainer:
            def __init__(self):
                self.net, self.opt = make()
                self.amp = torch.amp.GradScaler("cpu")

            def fit(self):
                for x in loader:
                    self.opt.zero_grad()
                    self.amp.scale(self.net(x).mean()).backward()
                    self.opt.step()

        Trainer().fit()
        """,
    )
    assert after is not None
    assert "self.amp.step(self.opt)\n            self.amp.update()" in after


def test_unscale_leaves_the_loop_over_micro_batches() -> None:
    after = fixed(
        "FL212",
        """\
        for x in loader:
            optimizer.zero_grad()
            for micro in x.chunk(4):
                scaler.scale(model(micro).mean() / 4).backward()
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        """,
    )
    assert after is not None
    assert ".backward()\n    scaler.unscale_(optimizer)\n    scaler.step" in after


def test_no_sync_takes_the_test_of_the_step() -> None:
    after = fixed(
        "FL301",
        """\
        optimizer.zero_grad()
        for i, x in enumerate(loader):
            out = model(x)
            loss = out.mean() / 4
            loss.backward()
            if (i + 1) % 4 == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        """,
        DDP,
    )
    assert after is not None
    assert (
        "with contextlib.nullcontext() if (i + 1) % 4 == 0 or i + 1 == len(loader) else model.no_sync():"
        in after
    )
    assert (
        "        out = model(x)\n        loss = out.mean() / 4\n        loss.backward()\n    if"
        in after
    )


def test_a_counter_that_moves_after_the_forward_pass_says_nothing_before_it() -> None:
    body = """\
    seen = 0
    for x in loader:
        (model(x).mean() / 4).backward()
        seen += 1
        if seen % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    """
    assert fixed("FL301", body, DDP) is None


def test_positional_arguments_of_autocast_become_keywords() -> None:
    after = fixed(
        "FL210",
        "with torch.cuda.amp.autocast(False, torch.bfloat16):\n    model(torch.randn(2, 8))\n",
    )
    assert (
        after
        == 'with torch.amp.autocast("cuda", enabled=False, dtype=torch.bfloat16):\n    model(torch.randn(2, 8))\n'
    )


@pytest.mark.parametrize(
    "use", ["amp = torch.cuda.amp.autocast", "torch.cuda.amp.GradScaler(**{})"]
)
def test_what_cannot_be_followed_is_not_rewritten(use: str) -> None:
    assert fixed("FL210", use + "\n") is None

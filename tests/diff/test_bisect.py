"""The step that changed the training is found with few runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fallline.cli.work.bisect import DoesNotRun, Step, first_bad, steps_between
from fallline.errors import UsageError
from fallline.runs.series import Rank, Series
from fallline.runs.update import UpdateRow

SCRIPT = """\
import torch, sys
from torch import nn
torch.manual_seed(0)
rate = float(sys.argv[sys.argv.index("--lr") + 1]) if "--lr" in sys.argv else 0.1
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for x in torch.randn(40, 8, 4):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def curve(slope: float) -> Series:
    run = Series(ranks=[Rank(0, {"status": "finished"})])
    for update in range(8):
        run.append(UpdateRow(update, loss=1 - slope * update, lr=0.1))
    return run


@pytest.mark.parametrize("bad", [1, 5, 31, 63])
def test_the_way_is_halved(bad: int) -> None:
    steps = [Step(str(n), ()) for n in range(64)]
    asked: list[int] = []

    def series(step: Step) -> Series:
        asked.append(int(step.name))
        return curve(0.02 if int(step.name) >= bad else 0.01)

    found = first_bad(steps, series, lambda text: None)
    assert found is not None and found.place == bad and not found.how.same
    assert len(asked) <= 3 + 6  # both ends, the good one again, and the halves


@pytest.mark.parametrize(("broken", "maybe"), [(range(28, 36), ()), (range(39, 42), (39, 40, 41))])
def test_steps_that_do_not_run_are_skipped(broken: range, maybe: tuple[int, ...]) -> None:
    said: list[str] = []

    def series(step: Step) -> Series:
        if int(step.name) in broken:
            raise DoesNotRun(f"{step.name} did not come to 8 updates")
        return curve(0.02 if int(step.name) >= 40 else 0.01)

    found = first_bad([Step(str(n), ()) for n in range(64)], series, said.append)
    assert found is not None and found.broken == maybe
    assert found.place == (42 if maybe else 40) and found.after == (38 if maybe else 39)
    assert any("did not come to" in text for text in said)


def test_a_script_that_never_repeats_is_said() -> None:
    runs = iter([curve(0.01), curve(0.02), curve(0.03)])
    with pytest.raises(UsageError, match="two runs of 0 already differ"):
        first_bad([Step(str(n), ()) for n in range(4)], lambda step: next(runs), lambda text: None)


def test_ends_that_train_the_same() -> None:
    steps = [Step(str(n), ()) for n in range(9)]
    assert first_bad(steps, lambda step: curve(0.01), lambda text: None) is None


def test_options_change_one_at_a_time() -> None:
    good, bad = ["x", "--lr", "0.1", "--amp"], ["x", "--lr", "0.2", "--wd=1"]
    steps = [step.arguments for step in steps_between(good, bad)]
    assert steps == [
        ("x", "--lr", "0.1", "--amp"), ("x", "--lr", "0.2", "--amp"), ("x", "--lr", "0.2"), ("x", "--lr", "0.2", "--wd=1"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="are the same"):
        steps_between(["--lr", "-1"], ["--lr", "-1"])


def test_options_of_hydra_and_options_given_twice() -> None:
    steps = steps_between(["lr=0.1", "wd=0", "model=a"], ["wd=1", "lr=0.1", "model=b"])
    assert [step.name for step in steps[1:]] == ["wd=1", "model=b"]
    steps = steps_between(["--set", "a=1", "--set", "b=2"], ["--set", "a=1", "--set", "b=3"])
    assert steps[1].arguments == ("--set", "a=1", "--set", "b=3")


def test_wrong_usage(fallline: Callable[..., Any], project: Path) -> None:
    assert fallline("bisect", "train.py").status == 2
    ran = fallline("bisect", "--good", "HEAD", "train.py")
    assert ran.status == 2 and "git" in ran.err


@pytest.mark.long
def test_a_commit_and_an_option_are_found(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()  # fmt: skip

    def bisect(*words: str) -> dict[str, Any]:
        command = [
            sys.executable,
            "-m",
            "fallline",
            "bisect",
            "--output-format",
            "json",
            "--updates",
            "6",
            *words,
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    git("init", "-b", "main")
    texts = [SCRIPT, SCRIPT + "# more\n", SCRIPT.replace("mean()", "mean() * 1.1")]
    for number, text in enumerate([*texts, texts[-1] + "# less\n"]):
        (tmp_path / "train.py").write_text(text)
        git("add", ".")
        git("commit", "-m", f"number {number}")
    found = bisect("--good", "HEAD~3", "train.py")
    assert found["first"].endswith("number 2") and found["diff"]["first"]["kind"] == "code"
    assert len(git("worktree", "list").splitlines()) == 1
    found = bisect(
        "--good-options", "--lr 0.1 --a 1", "train.py", "--a", "2", "--lr", "0.2", "--b", "3"
    )
    assert found["first"] == "--lr 0.2" and found["diff"]["first"]["name"] == "lr"

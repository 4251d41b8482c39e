"""`fallline measure clip`: thresholds from norms, batch size from noise, learning rate from a range test; answers known beforehand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fallline.errors import RunError, UsageError
from fallline.instruments import (
    gradient_noise_scale,
    lr_range_test,
    noise_scale_from_norms,
    propose_clip,
    propose_from_norms,
)
from fallline.instruments.clip.noise_script import noise_scale_of_script
from fallline.instruments.clip.rates_script import lr_range_of_script
from fallline.instruments.script import Script
from fallline.runs.update import UpdateRow
from fallline.watcher.recorder import Recorder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- the threshold -------------------------------------------------------------------------------------------------


def spread(count: int = 1000) -> list[float]:
    """1 to `count`, in an order without a trend: every quantile is known."""
    return [float((i * 377) % count + 1) for i in range(count)]


def test_the_threshold_is_the_quantile_and_the_share_is_counted() -> None:
    norms = [n / 100 for n in spread()[:-1]] + [200.0]  # one spike
    clip = propose_from_norms(norms, quantile=0.9)
    assert clip.max_norm == 9.02  # 9.011 in three digits, rounded up
    assert clip.clipped == pytest.approx(0.1, abs=0.002)
    assert clip.clipped == sum(n > 9.02 for n in norms) / len(norms)
    assert clip.quantiles["0.5"] == pytest.approx(5.0, abs=0.02)
    assert clip.largest == 200.0
    assert "max_norm=9" in clip.verdict


def test_another_quantile_is_listed_too() -> None:
    clip = propose_from_norms([*spread(), 5000.0], quantile=0.98)
    assert clip.max_norm == 981.0
    assert list(clip.quantiles) == ["0.5", "0.75", "0.9", "0.95", "0.98", "0.99"]


def test_without_outliers_nothing_is_proposed() -> None:
    clip = propose_from_norms([1.0 + 0.001 * (i % 100) for i in range(400)])
    assert clip.max_norm is None
    assert clip.verdict.startswith("nothing to clip")


def test_few_norms_are_no_tail() -> None:
    clip = propose_from_norms([1.0] * 30 + [50.0])
    assert clip.max_norm is None
    assert "31 norms are too few" in clip.verdict
    some = propose_from_norms([1.0] * 60 + [50.0])
    assert some.max_norm is not None
    assert any("61 norms are few" in note for note in some.notes)


def test_norms_that_fell_count_from_where_they_stay() -> None:
    norms = (
        [100.0 + i % 7 for i in range(300)] + [1.0 + 0.01 * (i % 100) for i in range(299)] + [30.0]
    )
    clip = propose_from_norms(norms)
    assert clip.max_norm == 1.9
    assert clip.from_update == 300
    assert any("the norms moved" in note for note in clip.notes)


def test_norms_that_are_not_finite_are_counted_apart() -> None:
    clip = propose_from_norms([math.nan, math.inf, *spread()])
    assert (clip.nonfinite, clip.norms) == (2, 1000)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 1.0, math.nan])
def test_a_quantile_that_makes_no_sense_is_refused(quantile: float) -> None:
    with pytest.raises(UsageError):
        propose_from_norms(spread(), quantile=quantile)


def record(folder: Path, rows: list[dict[str, Any]]) -> Path:
    recorder = Recorder(folder)
    for index, row in enumerate(rows):
        recorder.update(UpdateRow(index=index, **row))
    recorder.close("finished")
    return recorder.folder


def test_a_clipped_run_is_judged_by_its_norms_before_clipping(tmp_path: Path) -> None:
    norms = [*spread(), 9000.0]
    folder = record(
        tmp_path / "run", [{"clip_norm": n, "clip_threshold": 1.0, "grad_norm": 1.0} for n in norms]
    )
    clip = propose_clip(folder).clips[0]
    assert clip.max_norm == 901.0
    assert (clip.now, clip.clipped_now) == (1.0, pytest.approx(1000 / 1001))
    assert any("clipped at 1, which changed 100%" in note for note in clip.notes)


def test_norms_after_clipping_are_no_evidence(tmp_path: Path) -> None:
    folder = record(
        tmp_path / "run", [{"clip_threshold": 1.0, "grad_norm": 1.0} for _ in range(100)]
    )
    clip = propose_clip(folder).clips[0]
    assert clip.max_norm is None
    assert "does not show the norm before" in clip.verdict


def test_skipped_updates_do_not_count(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"grad_norm": n} for n in spread()]
    rows += [{"grad_norm": 1e9, "skipped": True} for _ in range(500)]
    clip = propose_clip(record(tmp_path / "run", rows)).clips[0]
    assert (clip.norms, clip.largest) == (1000, 1000.0)


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        propose_clip(tmp_path)


def test_the_verb_reads_a_run_of_fallline_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(200):
    size = 100.0 if step % 20 == 0 else 1.0   # one update in twenty is a spike
    loss = model(torch.full((1, 4), size)).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    optimizer.step()
"""
    )
    fallline = [sys.executable, "-m", "fallline"]
    subprocess.run(
        [*fallline, "run", "--out", "r", "train.py"], cwd=tmp_path, check=True, capture_output=True
    )
    done = subprocess.run(
        [*fallline, "measure", "clip", "--output-format", "json", "--out", "m", "r"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout)
    assert answer == json.loads((tmp_path / "m" / "clip.json").read_text())
    (clip,) = answer["optimizers"]
    assert clip["max_norm"] == 2.24  # sqrt(1 + 4) without a spike
    assert clip["clipped"] == pytest.approx(0.05)
    assert clip["largest"] == pytest.approx(math.sqrt(1 + 4 * 100.0**2), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("clip", "train.py"), "a threshold comes from a run"),
        (("clip", "nowhere"), "is not a run folder"),
        (("clip", "--quantile", "0.2", "train"), "would clip 80%"),
        (("clip", "--lr-range", "nowhere.py"), "cannot open nowhere.py"),
        (("clip", "--lr-range", "--rates", "1", "0.1", "train.py"), "end above the beginning"),
        (("clip", "--lr-range", "--noise-scale", "train.py"), "not allowed with"),
    ],
)
def test_wrong_usage_is_two(fallline: Callable[..., Any], arguments: Any, says: str) -> None:
    Path("train.py").write_text("import torch\n")
    done = fallline("measure", *arguments)
    assert done.status == 2
    assert says in done.err


def test_a_run_folder_is_read_without_torch(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", [{"grad_norm": n} for n in spread()])
    code = f"""
import importlib.util, sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Without())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else found(name, *a)
from fallline.cli.main import main
assert main(["measure", "clip", {str(folder)!r}]) == 0
sys.exit(main(["measure", "clip", "--lr-range", "train.py"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "nothing to clip" in done.stdout
    assert "`fallline measure clip --lr-range` needs torch" in done.stderr


# -- the noise scale -----------------------------------------------------------------------------------------------


def test_two_norms_give_the_noise_scale() -> None:
    # |g_B|² = |G|² + tr(Σ)/B with |G|² = 4, tr(Σ) = 100
    found = noise_scale_from_norms(4 + 100 / 8, 4 + 100 / 64, 8, 64)
    assert found.noise_scale == pytest.approx(25)
    assert (found.gradient_square, found.noise_trace) == (pytest.approx(4), pytest.approx(100))


def test_norms_that_are_all_noise_give_a_bound() -> None:
    found = noise_scale_from_norms(100 / 8, 100 / 64, 8, 64)
    assert found.noise_scale is None
    assert found.at_least == pytest.approx(64)
    assert "above 64 samples" in found.text()


class Shift(nn.Module):
    """The loss of sample x is |w - x|²/2, its gradient w - x: G = w - mean(x), Σ = cov(x)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.w - x).square().sum(1).mean() / 2


def test_the_noise_scale_of_a_problem_with_a_known_one() -> None:
    size, deviation, mean = 400, 2.0, 0.5
    truth = size * deviation**2 / (size * mean**2)  # 16 samples
    generator = torch.Generator().manual_seed(0)
    batches = [mean + deviation * torch.randn(4, size, generator=generator) for _ in range(32)]
    model = Shift(size)
    model.w.grad = torch.ones(size)
    before, random = model.calls.clone(), torch.get_rng_state()
    found = gradient_noise_scale(model, lambda b: model(b) + 0 * torch.rand(()), batches)
    assert found.noise_scale == pytest.approx(truth, rel=0.15)
    assert found.between is not None and found.between[0] < found.noise_scale < found.between[1]
    assert (found.batch_size, found.gradients) == (4, 32)
    # nothing has moved
    assert torch.equal(model.calls, before) and torch.equal(torch.get_rng_state(), random)
    assert torch.equal(model.w, torch.zeros(size)) and torch.equal(model.w.grad, torch.ones(size))


def test_one_batch_is_not_enough() -> None:
    model = Shift(3)
    with pytest.raises(UsageError, match="1 gradients"):
        gradient_noise_scale(model, model, [torch.ones(2, 3)])


NOISY = """\
import torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
torch.set_num_threads(1)
SIZE = 400
data = 0.5 + 2 * torch.randn(2048, SIZE)
w = torch.nn.Parameter(torch.zeros(SIZE))
optimizer = torch.optim.SGD([w], lr=1e-6)
for i, x in enumerate(DataLoader(data, batch_size=4)):
    loss = (w - x).square().sum(1).mean() / 2 / ACCUMULATE
    loss.backward()
    if (i + 1) % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_noise_scale_of_a_script(tmp_path: Path, accumulate: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"ACCUMULATE = {accumulate}\n{NOISY}")
    found = noise_scale_of_script(Script(str(path)), updates=3, gradients=32)
    assert found.noise_scale == pytest.approx(16, rel=0.2)
    assert (found.batch_size, found.gradients, found.update) == (4, 32, 3)


ACTING = """\
import torch
from torch import nn
torch.manual_seed(0)
actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=1e-9)
actor_optimizer = torch.optim.SGD(actor.parameters(), lr=1e-9)
for episode in range(100):
    with torch.no_grad():
        for _ in range(4):
            actor(torch.randn(3))
    states = torch.randn(16, 3)
    (critic(states) - 1).square().mean().backward()
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    (1000 * actor(states)).sum().backward()
    actor_optimizer.step()
    actor_optimizer.zero_grad()
"""


def test_two_losses_are_not_one_noise(tmp_path: Path) -> None:
    """The actor's gradients are a million times the critic's, and its rollouts have no batch."""
    path = tmp_path / "train.py"
    path.write_text(ACTING)
    found = noise_scale_of_script(Script(str(path)), updates=2, gradients=8)
    assert (found.batch_size, found.gradients) == (16, 8)
    assert found.gradient_square < 100
    assert any("other losses" in note for note in found.notes)


def test_a_script_that_ends_early_leaves_a_partial_result(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("ACCUMULATE = 1\n" + NOISY.replace("2048", "40"))
    found = noise_scale_of_script(Script(str(path)), updates=2, gradients=32)
    assert found.partial and found.gradients == 8
    path.write_text("ACCUMULATE = 1\n" + NOISY.replace("2048", "4"))
    with pytest.raises(UsageError, match="before two gradients"):
        noise_scale_of_script(Script(str(path)), updates=2, gradients=32)


# -- the learning rate ---------------------------------------------------------------------------------------------


def test_the_range_test_finds_where_a_quadratic_diverges_and_leaves_no_trace() -> None:
    curvature = 4.0  # gradient descent diverges above 2 / curvature
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    model.weight.grad = torch.ones(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.0)
    before, random = model.weight.detach().clone(), torch.get_rng_state()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return curvature / 2 * model.weight.square().sum() + 0 * torch.rand(())

    found = lr_range_test(model, optimizer, loss, [torch.zeros(1)], start=1e-3, end=10, updates=100)
    assert found.turn == pytest.approx(2 / curvature, rel=0.2)
    assert found.diverged is not None and found.diverged > 2 / curvature
    assert found.steepest is not None and found.steepest < found.turn
    assert len(found.rates) < 100  # it ended when it diverged
    assert "begin near" in found.text() and "learning rate" in found.text().splitlines()[-2]
    assert torch.equal(model.weight, before) and torch.equal(model.weight.grad, torch.ones(1, 8))
    assert torch.equal(torch.get_rng_state(), random)
    assert optimizer.param_groups[0]["lr"] == 0.25 and not optimizer.state


def test_a_rate_that_never_diverges_is_said() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found = lr_range_test(
        model,
        optimizer,
        lambda _: model.weight.square().sum(),
        [0],
        start=1e-5,
        end=1e-2,
        updates=40,
    )
    assert found.diverged is None
    assert "end the test higher" in found.text()


QUADRATIC = """\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
w = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([w], lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for step in range(1000):
    optimizer.zero_grad()
    loss = 2 * w.square().sum()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, scheduler.get_last_lr())
"""


def test_the_range_test_of_a_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(QUADRATIC)
    found = lr_range_of_script(Script(str(path)), start=1e-3, end=10, updates=100)
    assert found.turn == pytest.approx(0.5, rel=0.2)
    assert not found.partial and found.status == 0
    # the script's own schedule saw its own rates
    assert "0 [0.05]" in capfd.readouterr().err


def test_ctrl_c_leaves_what_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(QUADRATIC + "    if step == 30:\n        raise KeyboardInterrupt\n")
    found = lr_range_of_script(Script(str(path)), start=1e-3, end=1e-2, updates=100)
    assert found.partial and found.status == 130 and len(found.rates) == 31

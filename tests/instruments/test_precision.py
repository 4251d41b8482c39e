"""The precision probe: what was planted is found, what is advised works, and nothing is touched."""

from __future__ import annotations

import functools
import inspect
import json
import math
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fallline
from fallline.errors import UsageError
from fallline.instruments.precision.probe import _reached_by
from fallline.instruments.precision.report import PrecisionReport
from fallline.instruments.precision.table import autocast_table


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def probe(fn: Callable[..., Any], *inputs: Any) -> PrecisionReport:
    return fallline.precision_probe(fn, *inputs, timing=False)


def line_of(thing: Any, mark: str) -> int:
    lines, first = inspect.getsourcelines(thing)
    return first + next(i for i, line in enumerate(lines) if mark in line)


class Hidden(nn.Module):
    """Overflows float16 in one operation of one module, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.loud = Loud()
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.loud(torch.tanh(self.first(x))))


class Loud(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wide = x * 400
        squares = wide * wide  # planted: 160000 is more than float16 holds
        return squares / 160_000


def test_the_planted_overflow_is_named_with_module_and_line_and_the_change_works() -> None:
    model, x = Hidden(), torch.randn(16, 8) * 3
    report = probe(lambda: model(x).mean())
    outcome = report.outcomes["fp16 autocast"]
    assert not outcome.works
    first = outcome.first_failure
    assert first is not None and first.call is not None and first.call.at is not None
    assert (first.op, first.module, first.dtype) == ("mul", "loud", "float16")
    assert first.call.at.line == line_of(Loud, "planted")
    assert first.overflow > 0
    assert first.given is not None and 256 < first.given.largest <= 400
    change = report.repairs["fp16 autocast"]
    assert (change.kind, change.verified) == ("cast", True)
    assert change.places[0]["line"] == line_of(Loud, "planted")
    assert change.outcome is not None and change.outcome.works
    assert report.outcomes["bf16 autocast"].works  # its range is float32's
    assert report.outcomes["fp32"].works

    class Cast(Loud):  # and written into the code, it works too
        def forward(self, x: Tensor) -> Tensor:
            wide = (x * 400).float()
            return wide * wide / 160_000

    model.loud = Cast()
    assert probe(lambda: model(x).mean()).outcomes["fp16 autocast"].works


def hand_written(logits: Tensor, target: Tensor) -> Tensor:
    weights = torch.exp(logits)  # planted
    probability = weights / weights.sum(-1, keepdim=True)
    return -torch.log(probability[torch.arange(len(target)), target]).mean()  # log


def test_a_softmax_by_hand_that_overflows_even_float32_gets_a_stable_form() -> None:
    logits = (torch.randn(8, 10) * 100).requires_grad_()
    target = torch.randint(0, 10, (8,))
    report = probe(hand_written, logits, target)
    outcome = report.outcomes["fp32"]
    assert outcome.loss is not None and not math.isfinite(outcome.loss)
    first = outcome.first_failure
    assert first is not None and first.op == "exp" and first.call is not None
    assert first.call.at is not None and first.call.at.line == line_of(hand_written, "planted")
    change = report.repairs["fp32"]
    assert (change.kind, change.verified) == ("log space", True)
    assert change.places[0]["line"] == line_of(hand_written, "# log")
    assert report.verdict is not None and report.verdict.choice == "fp32"


def test_a_logarithm_of_a_softmax_stays_in_logarithms() -> None:
    logits = torch.randn(8, 10, requires_grad=True)

    def loss() -> Tensor:
        shifted = torch.cat([logits, logits.new_full((8, 1), -20.0)], 1)
        probability = torch.softmax(shifted, -1)
        return -torch.log(probability[:, -1]).mean()  # zero in float16

    report = probe(loss)
    change = report.repairs["fp16 pure"]
    assert change.kind == "log space" and change.verified
    assert change.places[0]["line"] == line_of(loss, "zero in float16")


def test_an_epsilon_that_vanishes_is_blamed_not_the_division_after_it() -> None:
    weight = torch.ones(4, requires_grad=True)

    def loss() -> Tensor:
        small = (weight * 0).half() + 1e-9  # planted
        return (weight / small.detach()).sum() * 1e-12

    first = probe(loss).outcomes["fp32"].first_failure
    assert first is not None and first.call is not None and first.call.at is not None
    assert first.call.at.line == line_of(loss, "planted")
    assert first.underflow == 1.0


def test_small_gradients_need_loss_scaling_in_float16_and_not_in_bfloat16() -> None:
    model, x = nn.Linear(16, 4), torch.randn(8, 16)
    report = probe(lambda: model(x).float().square().mean() * 1e-7)
    half, brain = report.outcomes["fp16 autocast"], report.outcomes["bf16 autocast"]
    assert half.plain is not None and half.scaled is not None and brain.plain is not None
    assert half.plain.underflow == 1.0
    assert half.scaled.underflow < 0.05 and half.scaled.scale == 65536
    assert brain.plain.underflow == 0.0
    assert (half.works, half.works_unscaled, brain.works_unscaled) == (True, False, True)
    assert report.repairs["fp16 autocast"].kind == "scale the loss"
    assert "fp16 autocast" in report.text() and "bf16 autocast" not in report.repairs
    assert report.small_gradients["zero_in_fp16"] > 0.4


def test_matrices_that_do_not_fit_tensor_cores_are_counted_with_their_padding() -> None:
    model, x = nn.Sequential(nn.Linear(16, 30), nn.Linear(30, 32)), torch.randn(8, 16)
    forward = [m for m in probe(model, x).matmuls if m.phase == "forward"]
    found = {m.module: (m.shape[1:], m.aligned, m.padded[1:]) for m in forward}
    assert found["0"] == ((8, 16, 30), False, (8, 16, 32))
    assert found["1"] == ((8, 30, 32), False, (8, 32, 32))
    assert forward[0].cost == pytest.approx(32 / 30 - 1)
    aligned = probe(nn.Linear(16, 16), torch.randn(16, 16)).matmuls
    assert all(m.aligned and m.aligned_one_byte for m in aligned)
    byte = probe(nn.Linear(24, 16), torch.randn(16, 24)).matmuls
    assert all(m.aligned and not m.aligned_one_byte for m in byte)


def test_types_are_what_the_operation_really_ran_in() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    report = probe(lambda: functional.mse_loss(model(x), torch.zeros(4, 8)))
    ran = {o.op: o.dtype for o in report.outcomes["bf16 autocast"].operations}
    assert (ran["linear"], ran["mse_loss"]) == ("bfloat16", "float32")
    assert {o.dtype for o in report.outcomes["fp32"].operations} == {"float32"}


def test_dropout_is_no_error() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    report = probe(model, torch.randn(16, 8))
    for outcome in report.outcomes.values():
        assert outcome.loss_error is not None and outcome.loss_error < 0.02
    assert not report.loss_given  # a module returns outputs, not a loss


def test_the_dropout_of_a_gpu_has_the_same_mask_forward_and_backward() -> None:
    """CUDA draws other masks for other types; `native_dropout` is what runs there, and keeps its mask for the backward."""
    model, x = nn.Linear(8, 64), torch.randn(16, 8)
    report = probe(lambda: torch.native_dropout(model(x), 0.5, True)[0].square().mean())
    for name in ("fp16 autocast", "bf16 autocast", "fp16 pure"):
        gradients = report.outcomes[name].plain
        assert gradients is not None and gradients.error is not None and gradients.error < 0.02
    drawn = probe(
        lambda: model(x)[torch.multinomial(torch.softmax(model(x), -1), 2)[:, 0] % 16].mean()
    )
    assert all(o.works for o in drawn.outcomes.values()), drawn.text()


class Everything(nn.Module):
    """Buffers that move, dropout, a counter, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight
        self.calls = 0
        self.register_buffer("average", torch.zeros(8))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        x = self.norm(self.embed(ids))
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.head(self.drop(x))


def bits(model: nn.Module) -> list[bytes]:
    held = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    return [t.numpy().tobytes() if t is not None else b"none" for t in held]


def test_model_gradients_optimizer_and_randomness_stay_bit_for_bit() -> None:
    model = Everything()
    ids, target = torch.randint(0, 11, (6,)), torch.randint(0, 11, (6,))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    functional.cross_entropy(model(ids), target).backward()
    optimizer.step()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(ids), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    before = (bits(model), model.calls, torch.get_rng_state().tolist(), random.getstate())
    state = json.dumps(str(optimizer.state_dict()) + str(scheduler.state_dict()))
    versions = [t._version for t in model.state_dict().values()]
    report = fallline.precision_probe(step)
    assert (bits(model), model.calls, torch.get_rng_state().tolist(), random.getstate()) == before
    assert json.dumps(str(optimizer.state_dict()) + str(scheduler.state_dict())) == state
    assert [t._version for t in model.state_dict().values()] == versions
    assert "step" not in optimizer.__dict__ or optimizer.__dict__["step"].__name__ != "_nothing"
    assert set(report.speedups) == {"fp16 autocast", "bf16 autocast"}
    assert report.outcomes["bf16 autocast"].works and report.verdict is not None


def test_what_is_wrong_is_said_and_no_traceback() -> None:
    with pytest.raises(UsageError, match="needs a function"):
        fallline.precision_probe(torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="return the loss"):
        probe(lambda: "nothing")


def test_an_interrupt_leaves_what_was_measured() -> None:
    calls = 0

    def loss(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return x.square().mean()

    report = probe(loss, torch.ones(3, requires_grad=True))
    assert report.partial and list(report.outcomes) == ["fp32", "fp16 autocast"]
    assert report.to_json()["partial"] and "stopped" in report.text()


def test_the_table_is_asked_from_torch_and_differs_between_devices() -> None:
    cpu, cuda = autocast_table("cpu").rules, autocast_table("cuda").rules
    assert cpu["linear"] == cuda["linear"] == "half"
    assert (cpu["exp"], cuda["exp"]) == ("given", "float32")
    assert (cpu["softmax.int"], cuda["softmax.int"]) == ("given", "float32")
    assert (cpu["sum"], cuda["sum"]) == ("given", "float32")
    assert cpu["mean"] == cuda["mean"] == "given"
    assert cpu["mse_loss"] == cuda["mse_loss"] == "float32"
    assert cuda["addcmul"] == "widest" and cuda["binary_cross_entropy"] == "refused"
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
    with pytest.raises(UsageError, match="cpu and one for cuda"):
        autocast_table("tpu")


SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Dropout(0.1))

        def forward(self, x):
            z = nn.functional.normalize(self.net(x), dim=-1)
            return z @ z.T / 0.05

    model = Scores()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(96, 20)), 32, shuffle=True)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                weights = torch.exp(model(x))  # planted
                share = weights / weights.sum(-1, keepdim=True)
                loss = -torch.log(share.diagonal()).mean()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.17g}")
"""


def measure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fallline", "measure", "precision", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_is_measured_at_one_of_its_updates_and_trains_the_same(tmp_path: Path) -> None:
    source = textwrap.dedent(SCRIPT)
    (tmp_path / "train.py").write_text(source)
    ran = measure(tmp_path, "--output-format", "json", "--out", "m", "--updates", "2", "train.py")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    first = found["formats"]["fp16 autocast"]["first_failure"]
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "planted" in text)
    assert (first["op"], first["path"], first["line"]) == ("exp", "train.py", line)
    assert found["changes"]["fp16 autocast"]["verified"]
    assert found["loss_given"] and not found["partial"]
    assert json.loads((tmp_path / "m" / "precision.json").read_text()) == found
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True
    )
    losses = [x for x in ran.stderr.splitlines() if re.fullmatch(r"-?[\d.e+-]+", x)]
    assert losses == plain.stdout.split()[:2]


def test_a_script_that_never_trains_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("import torch\nprint(torch.ones(1))\n")
    ran = measure(tmp_path, "idle.py")
    assert ran.returncode == 2 and "nothing to measure" in ran.stderr
    assert "Traceback" not in ran.stderr and ran.stdout == ""
    ran = measure(tmp_path)
    assert ran.returncode == 2 and "--table" in ran.stderr


@pytest.mark.parametrize("verb", ["precision", "model"])
def test_torch_is_imported_by_the_script_which_may_have_something_to_set_first(
    tmp_path: Path, verb: str
) -> None:
    text = """
        import sys
        assert "torch" not in sys.modules
        import torch
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.ones(2, 3)).mean()
        loss.backward()
        optimizer.step()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "fallline", "measure", verb, "--out", "m", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "m" / f"{verb}.json").exists()


def test_the_device_is_that_of_what_the_code_names_and_not_of_all_there_is() -> None:
    bystander = nn.Linear(500, 500)  # such as an average kept on another device
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    wanted = {id(x), *map(id, model.parameters())}
    for code in (
        lambda: model(x).mean(),
        functools.partial(nn.Module.__call__, model, x),
        functools.partial(lambda given: model(given).mean(), x),
    ):
        assert {id(t) for t in _reached_by(code)} == wanted
    assert {id(t) for t in _reached_by(bystander.forward)} == set(map(id, bystander.parameters()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_exp_is_safe_under_autocast_and_the_matmul_is_not() -> None:
    model, x = Hidden().cuda(), torch.randn(16, 8, device="cuda") * 3
    report = fallline.precision_probe(lambda: model(x).mean())
    first = report.outcomes["fp16 autocast"].first_failure
    assert report.device == "cuda" and first is not None
    assert (first.op, first.module) == ("mul", "loud")
    assert set(report.speedups) == {"fp16 autocast", "bf16 autocast"}
    logits = (torch.randn(8, 10, device="cuda") * 6).requires_grad_()
    safe = probe(hand_written, logits, logits.detach().argmax(-1))
    assert safe.outcomes["fp16 autocast"].works and not safe.outcomes["fp16 pure"].works


def test_float32_is_the_reference_where_float64_does_not_fit() -> None:
    weight = torch.randn(8, requires_grad=True)

    def loss() -> Tensor:
        if weight.dtype is torch.float64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (weight * weight).mean()

    report = probe(loss)
    assert report.reference == "fp32" and "does not fit" in report.text()
    assert report.outcomes["fp32"].loss_error == 0.0
    assert report.outcomes["fp16 pure"].works


def test_a_loss_that_is_a_module_of_its_own_gets_the_outputs_of_the_replay(tmp_path: Path) -> None:
    """nn.CrossEntropyLoss is called like a model: what it was given before belongs to the script's own graph."""
    text = (
        SCRIPT.partition("model = Scores()")[0]
        + """
    model, criterion = nn.Linear(20, 4), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = criterion(model(torch.randn(8, 20)), torch.zeros(8, dtype=torch.long))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    )
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    ran = measure(tmp_path, "--no-timing", "--output-format", "json", "train.py")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["formats"]["bf16 autocast"]
    backward = {o["op"] for o in found["operations"] if o["phase"] == "backward"}
    assert "matmul" in backward  # the gradient of the layer before it
    assert 0 < found["gradients"]["relative_error"] < 0.05


class Masked(nn.Module):
    """Infinities that are meant, a buffer written in place, and a plain tensor too."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(8, 8)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).bool())
        self.seen = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.qk(x)
        self.seen.add_(h.detach().mean((0, 1)))
        scores = (h @ h.transpose(-1, -2)).masked_fill(~self.mask, float("-inf"))
        return torch.softmax(scores, -1) @ h


def odd_code() -> dict[str, Callable[[], Tensor]]:
    x, ids = torch.randn(4, 6, 8), torch.randint(0, 9, (5,))
    masked, sparse = Masked(), nn.Embedding(9, 4, sparse=True)
    small, tanh = nn.Linear(8, 2), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    return {
        "meant infinities": lambda: masked(x).square().mean(),
        "sparse gradients": lambda: sparse(ids).square().mean(),
        "gradient penalty": lambda: (
            torch.autograd.grad(tanh(x).sum(), list(tanh.parameters()), create_graph=True)[0]
            .square()
            .mean()
        ),
        "noise": lambda: (small(x + torch.randn_like(x)) + torch.rand(4, 6, 2)).square().mean(),
        "vmap": lambda: torch.vmap(small)(x).square().mean(),
        "checkpoint": lambda: (
            torch.utils.checkpoint.checkpoint(small, x, use_reentrant=False).square().mean()
        ),
    }


def tensors_of(models: list[nn.Module]) -> list[Tensor]:
    plain = [v for m in models for v in vars(m).values() if isinstance(v, Tensor)]
    return [*plain, *(t for m in models for t in m.state_dict().values())]


@pytest.mark.parametrize("name", odd_code())
def test_odd_code_works_in_autocast_and_stays_as_it_was(name: str) -> None:
    loss = odd_code()[name]
    held = [c.cell_contents for c in loss.__closure__ or ()]
    models = [m for m in held if isinstance(m, nn.Module)]
    before = [t.clone() for t in tensors_of(models)]
    state = torch.get_rng_state()
    report = probe(loss)
    for format in ("fp32", "fp16 autocast", "bf16 autocast"):
        assert report.outcomes[format].works, report.text()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors_of(models), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for m in models for p in m.parameters())

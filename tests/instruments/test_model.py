"""`fallline measure model`: planted mistakes in a model are found, and the model stays as it is."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fallline.errors import UsageError
from fallline.instruments import measure_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Loose(nn.Module):
    """Everything that can be held without being registered."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.layers = [nn.Linear(32, 32), nn.Linear(32, 32)]
        self.heads = {"a": nn.Linear(32, 4)}
        self.scale = torch.ones(32, requires_grad=True)
        self.mask = torch.ones(32)
        self.again = [self.first]  # registered above: no mistake

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * self.mask
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return self.heads["a"](h * self.scale)


def test_what_is_not_registered_is_found_and_nothing_else() -> None:
    report = measure_model(Loose())
    found = {u.path: (u.kind, u.parameters) for u in report.unregistered}
    assert found == {
        "layers[0]": ("module", 32 * 33),
        "layers[1]": ("module", 32 * 33),
        "heads['a']": ("module", 33 * 4),
        "scale": ("parameter", 32),
        "mask": ("tensor", 0),
    }
    fixes = {u.path: u.fix for u in report.unregistered}
    assert "nn.ModuleList" in fixes["layers[0]"] and "nn.ModuleDict" in fixes["heads['a']"]
    assert "nn.Parameter" in fixes["scale"] and "register_buffer" in fixes["mask"]
    assert "layers[0]" in report.text()


class Units(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 20)
        self.out = nn.Linear(20, 2)
        with torch.no_grad():
            self.wide.bias[[3, 7, 11]] = -1e3

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.wide(x)))  # planted


def test_dead_units_are_named_with_line_and_number() -> None:
    report = measure_model(Units(), torch.randn(256, 8))
    assert report.flow is not None
    (activation,) = report.flow.activations
    assert activation.dead == [3, 7, 11] and activation.units == 20
    lines, first = inspect.getsourcelines(Units)
    planted = first + next(i for i, line in enumerate(lines) if "planted" in line)
    assert activation.at is not None and activation.at.line == planted
    wide = next(x for x in report.flow.layers if x.name == "wide")
    assert (wide.zero_rows, wide.rows) == (3, 20)
    assert any("3 of 20 units of `relu`" in f for f in report.findings)


def deep(layers: int = 20) -> nn.Module:
    parts = [m for _ in range(layers) for m in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(64, 1))


def test_a_gradient_that_vanishes_with_depth_and_the_initialisation_that_helps() -> None:
    report = measure_model(deep())
    assert report.flow is not None and report.flow.early_to_late is not None
    assert report.flow.early_to_late < 1e-4  # torch's default for Linear, see FACTS
    assert report.tried["how"] == "He initialisation" and report.tried["helps"]
    assert any("vanishes with depth" in f for f in report.findings)
    gains = [x.gain for x in report.flow.layers[:3]]
    assert all(g is not None and 0.3 < g < 0.9 for g in gains)  # sqrt(1/3) of the uniform default


def test_a_healthy_model_has_nothing_wrong() -> None:
    model = deep(6)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    report = measure_model(model, torch.randn(512, 64))
    assert report.findings == [] and "nothing wrong was found" in report.text()


class Heads(nn.Module):
    """Layers that differ in kind and gradient, and no depth: nothing to compare."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.classifier = (nn.Linear(16, n) for n in (16, 16, 2))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.query(x) @ x.T * 1e-5, -1)
        return self.classifier(weights @ self.value(x))


def test_layers_with_other_tasks_are_not_compared() -> None:
    report = measure_model(Heads(), torch.randn(64, 16))
    assert report.flow is not None and report.flow.early_to_late is None
    assert report.findings == []


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.cut = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(x + self.cut(x).detach())


def test_shared_unused_and_cut_off_parameters() -> None:
    report = measure_model(Parts())
    assert report.shared == [["embed.weight", "head.weight"]]
    assert report.flow is not None and report.flow.not_called == ["never"]
    assert {"cut.weight", "cut.bias"} <= set(report.flow.without_gradient)
    said = "\n".join(report.findings)
    assert "never called in this batch: never" in said
    assert "does not depend on cut.weight, cut.bias" in said


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 2)),
        nn.LSTM(5, 7, batch_first=True),
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_batch_is_made_from_the_first_layer(model: nn.Module) -> None:
    report = measure_model(model)
    assert report.flow is not None and report.flow.loss is not None and "random" in report.batch


def test_the_model_and_the_randomness_stay_bit_for_bit() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model(torch.randn(4, 8)).sum().backward()
    kept = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    before = [t.clone() for t in kept if t is not None]
    state = torch.get_rng_state()
    report = measure_model(model)
    now = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True) if b is not None)
    assert torch.equal(state, torch.get_rng_state()) and report.flow is not None
    assert not model._forward_hooks and model.training


def test_wrong_usage_is_said() -> None:
    with pytest.raises(UsageError, match="Module"):
        measure_model(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no batch could be made"):
        measure_model(nn.Bilinear(2, 3, 4))


MODELS = """
    import torch
    from torch import nn

    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.more = [nn.Linear(4, 4)]

        def forward(self, x):
            return self.more[0](self.first(x))

    def with_batch():
        return Listed(), torch.ones(3, 4)
"""
SCRIPT = """
    import torch
    from torch import nn
    from models import Listed

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Listed()
    extra = nn.Linear(4, 1)
    model.extra = extra
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 4)
        loss = model.extra(model(x)).square().mean()
        loss.backward()
        optimizer.step()
"""


def measure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fallline", "measure", "model", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


ACTING = """
import torch
from torch import nn
torch.manual_seed(0)
actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (critic, actor)]
for episode in range(3):
    with torch.no_grad():
        for _ in range(4):
            actor(torch.randn(3))
    states = torch.randn(16, 3)
    (critic(states) - 100).square().mean().backward()
    optimizers[0].step()
    actor(states).sum().backward()
    optimizers[1].step()
"""


def test_a_rollout_without_gradients_is_no_part_of_the_micro_batch(tmp_path: Path) -> None:
    from fallline.instruments.model.script import model_of_script
    from fallline.instruments.script import Script

    path = tmp_path / "train.py"
    path.write_text(ACTING)
    report, _ = model_of_script(Script(str(path)))
    assert (report.parameters, report.elsewhere) == (4, 8)  # the critic's, and the actor's beside
    assert report.flow is not None and report.flow.loss_given
    assert report.flow.loss == pytest.approx(1e4, rel=0.1)
    assert "beside it the script trains 8 parameters" in report.text()


def test_the_command_takes_a_callable_or_a_script(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS))
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    ran = measure(tmp_path, "--output-format", "json", "models:with_batch")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [u["path"] for u in found["unregistered"]] == ["more[0]"] and found["batch"] == "given"
    ran = measure(tmp_path, "--output-format", "json", "--out", "m", "train.py")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["batch"] == "of update 1" and found["loss_given"]
    assert found["without_gradient"] == []  # also through a second model that is called
    assert found["not_optimized"] == ["extra.weight", "extra.bias"]
    assert json.loads((tmp_path / "m" / "model.json").read_text()) == found
    for target, said in (("models:none", "has no none"), ("nowhere:x", "no module nowhere")):
        ran = measure(tmp_path, target)
        assert ran.returncode == 2 and said in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_gpu_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model.cuda()
    before = [t.clone() for t in model.state_dict().values()]
    state = torch.cuda.get_rng_state()
    report = measure_model(model)
    assert report.flow is not None and report.flow.loss is not None
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert torch.equal(state, torch.cuda.get_rng_state())

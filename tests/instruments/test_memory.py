"""Memory: every answer here is known by construction."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fallline.instruments.memory.allocator import fragmentation, lines_at_peak
from fallline.instruments.memory.measure import measure_memory

FLOAT = 4


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self, *hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(8, h) for h in hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def training(
    model: nn.Module,
    keep: Callable[[torch.Tensor, torch.Tensor], object] = lambda out, loss: None,
    batch: int = 64,
    **zero: Any,
) -> Callable[[], None]:
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(batch * 32, 8)), batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train() -> None:
        for (x,) in loader:
            optimizer.zero_grad(**zero)
            out = model(x)
            loss = out.pow(2).mean()
            loss.backward()
            optimizer.step()
            keep(out, loss)

    return train


def test_parameters_gradients_and_state_are_counted_to_the_byte() -> None:
    model = Net(2048)
    size = sum(p.numel() for p in model.parameters()) * FLOAT
    memory = measure_memory(training(model, batch=1), updates=4)
    assert memory.holders["parameters"] == size
    assert memory.holders["optimizer state"] == size  # momentum
    assert memory.holders["gradients"] <= size
    assert sum(memory.holders.values()) == memory.peak
    assert not memory.growth.leaks
    assert memory.holders["kept from earlier updates"] == 0


def test_the_module_with_the_big_activations_is_named() -> None:
    memory = measure_memory(training(Net(32, 8192, 32), batch=256), updates=4)
    first = next(iter(memory.modules))
    assert first.startswith("blocks.1")
    assert memory.peak_phase == "backward"
    big = sum(size for path, size in memory.modules.items() if path.startswith("blocks.1"))
    # tanh keeps what it returns; what `up` returns is needed by nobody
    assert 256 * 8192 * FLOAT <= big < 1.1 * 256 * 8192 * FLOAT
    assert memory.holders["activations"] > 0.3 * memory.peak


def test_activations_are_what_autograd_saves() -> None:
    """The accounting by lifetime agrees with what torch itself says it saves for the backward."""
    model = Net(512, 256)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor.data_ptr() == p.data_ptr() for p in model.parameters()):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.randn(128, 8)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).pow(2).mean()
    saved.pop(x.untyped_storage().data_ptr())
    memory = measure_memory(training(model, batch=128), updates=3)
    assert memory.activations == sum(saved.values()) + FLOAT  # and the loss itself


def test_a_high_setup_does_not_hide_the_peak_of_training() -> None:
    def train() -> None:
        torch.ones(1 << 20).mul(2).mean()
        training(Net(64))()

    memory = measure_memory(train, updates=4)
    assert memory.before >= 2 * FLOAT << 20
    assert memory.peak < 1 << 20
    assert memory.peak_phase == "backward"
    assert "before training it was higher: 8.0 MiB" in memory.text()


def test_a_leak_is_named_by_its_line_and_its_holder() -> None:
    history: list[torch.Tensor] = []
    memory = measure_memory(
        training(Net(256), keep=lambda out, loss: history.append(out.detach() * 2)), updates=8
    )
    growth = memory.growth
    assert growth.leaks
    line = growth.lines[0]
    assert "history.append(out.detach() * 2)" in line.source
    assert line.per_update == 64 * 8 * FLOAT
    assert line.tensors == 1
    assert growth.holder == "history"
    assert growth.graphs == 0
    assert memory.holders["kept from earlier updates"] > 0


def test_a_kept_loss_holds_a_graph() -> None:
    history: list[torch.Tensor] = []
    memory = measure_memory(
        training(Net(256), keep=lambda out, loss: history.append(loss)), updates=8
    )
    assert memory.growth.graphs == 7  # of eight, the last is still in use
    assert memory.growth.nodes > 5
    assert memory.growth.per_update == FLOAT
    assert "graph of" in memory.text()


def test_healthy_training_does_not_leak() -> None:
    losses: list[float] = []
    memory = measure_memory(
        training(Net(64), keep=lambda out, loss: losses.append(loss.item())), updates=8
    )
    assert not memory.growth.leaks
    assert "nothing is left behind" in memory.text()


def test_a_leak_in_a_script_is_named_by_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """\
            import torch
            from torch import nn
            torch.set_num_threads(1)
            model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            total = 0.0
            for step in range(50):
                loss = model(torch.randn(16, 8)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss
            """
        )
    )
    answer = measured(path, "--try-for", "0")
    growth = answer["growth"]
    assert growth["leaks"]
    assert growth["graphs_kept"] == 7
    assert (growth["kept_at"]["path"], growth["kept_at"]["line"]) == ("train.py", 12)
    assert growth["how"] == "add"


def measured(script: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fallline",
            "measure",
            "memory",
            "--output-format",
            "json",
            *options,
            script.name,
        ],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    answer["stderr"], answer["exit"] = done.stderr, done.returncode
    return answer


@pytest.mark.slow
def test_what_is_computed_is_what_a_try_gives(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.set_num_threads(1)
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.up, self.down = nn.Linear(16, 1024), nn.Linear(1024, 16)
                def forward(self, x):
                    return self.down(torch.tanh(self.up(x)))
            model = nn.Sequential(*(Block() for _ in range(8)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, in DataLoader(TensorDataset(torch.randn(8192, 16)), batch_size=256):
                optimizer.zero_grad(set_to_none=False)
                model(x).pow(2).mean().backward()
                optimizer.step()
            """
        )
    )
    answer = measured(path, "--try-for", "300")
    remedies = {r["name"]: r for r in answer["remedies"]}
    peak = answer["peak"]["bytes"]
    for name, least in (("micro-batch", 0.3), ("checkpoint=", 0.5), ("bf16", 0.2)):
        remedy = remedies[name]
        assert remedy["saved"] > least * peak, remedy
        assert abs(remedy["saves"] - remedy["saved"]) < 0.1 * peak, remedy
    assert remedies["set_to_none"]["saves"] > 0
    assert answer["activations"]["modules"]


def test_half_a_batch_is_not_tried_where_nobody_can_halve_it() -> None:
    model = Net(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(64, 8)).mean().backward()
            optimizer.step()

    (half,) = [r for r in measure_memory(train, updates=4).remedies if r.name == "micro-batch"]
    assert half.problem == "not tried: no DataLoader makes the batches"


def test_out_of_memory_is_explained_and_ends_the_script_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """\
            import resource
            import torch
            from torch import nn
            torch.set_num_threads(1)
            model = nn.Sequential(nn.Linear(8, 4096), nn.Tanh(), nn.Linear(4096, 8))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            batch = 64
            for step in range(8):
                optimizer.zero_grad()
                model(torch.randn(batch, 8)).sum().backward()
                optimizer.step()
                if step == 2:
                    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
                    batch = 1 << 20
            """
        )
    )
    answer = measured(path, "--try-for", "0")
    assert answer["exit"] == 1
    assert answer["partial"]
    oom = answer["out_of_memory"]
    assert (oom["update"], oom["phase"], oom["at"]["line"]) == (3, "forward", 10)
    assert oom["op"] == "addmm"
    assert oom["module"] == "0"
    assert "allocate" in answer["stderr"]  # the script's own error, and under it why
    assert "fallline: no memory for addmm in 0, in the forward of update 3" in answer["stderr"]
    assert "parameters" in answer["stderr"]


def test_an_out_of_memory_error_from_elsewhere_is_raised_again_with_its_note() -> None:
    model = Net(64)
    train = training(model, keep=lambda out, loss: _fail())
    with pytest.raises(torch.OutOfMemoryError, match="mine") as raised:
        measure_memory(train, updates=3)
    assert "parameters" in "".join(raised.value.__notes__)


def _fail() -> None:
    raise torch.OutOfMemoryError("mine")


@pytest.mark.parametrize("kind", ["mlp", "attention", "lstm", "conv"])
def test_nothing_is_changed_not_a_bit(kind: str) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        models: dict[str, nn.Module] = {
            "mlp": nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.GELU(), nn.Linear(32, 8)),
            "attention": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            "lstm": nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True),
            "conv": nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU()),
        }
        model = models[kind]
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            out = model(torch.randn(16, 4, 8))
            out = out[0] if isinstance(out, tuple) else out
            optimizer.zero_grad()
            out.pow(2).mean().backward()
            optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
        results[-1].append(torch.get_rng_state())
        return results[-1]

    results: list[list[torch.Tensor]] = []
    train()
    measure_memory(train, updates=5)
    assert len(results) == 2
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_allocators_own_words_are_understood() -> None:
    """A trace and segments as torch.cuda.memory._snapshot() gives them."""

    def frame(name: str, line: int) -> dict[str, Any]:
        return {"filename": name, "name": "f", "line": line}

    here = str(Path(__file__))
    inside = frame(torch.nn.modules.linear.__file__, 134)
    trace = [
        {"action": "alloc", "addr": 1, "size": 100, "frames": [inside, frame(here, 10)]},
        {"action": "alloc", "addr": 2, "size": 300, "frames": [inside, frame(here, 20)]},
        {"action": "free_requested", "addr": 2, "size": 300},
        {"action": "free_completed", "addr": 2, "size": 300},
        {"action": "alloc", "addr": 3, "size": 200, "frames": []},
    ]
    lines = lines_at_peak(trace)
    assert [(n, size) for _, n, size in lines] == [(20, 300), (10, 100)]
    segments = [
        {
            "total_size": 1000,
            "allocated_size": 600,
            "blocks": [
                {"size": 600, "state": "active_allocated"},
                {"size": 300, "state": "inactive"},
                {"size": 100, "state": "inactive"},
            ],
        },
        {"total_size": 500, "allocated_size": 0, "blocks": [{"size": 500, "state": "inactive"}]},
    ]
    lies = fragmentation(segments)
    assert (lies.reserved, lies.allocated, lies.free_in_used, lies.largest_free) == (
        1500,
        600,
        400,
        300,
    )


def test_the_allocator_is_asked_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda in a costume: its counters as they are named there."""
    current = {"reserved_bytes": 900, "allocated_bytes": 600, "inactive_split_bytes": 200}
    answers: dict[str, Any] = {
        "is_initialized": lambda: True,
        "max_memory_allocated": lambda: 700,
        "max_memory_reserved": lambda: 1000,
        "memory_allocated": lambda: 600,
        "memory_stats": lambda: {f"{name}.all.current": n for name, n in current.items()},
        "memory_snapshot": lambda: [],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    recorded: list[Any] = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda *a, **k: recorded.append(k)
    )
    monkeypatch.setattr(
        torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[]]}
    )
    memory = measure_memory(training(Net(64)), updates=4)
    assert len(recorded) == 2  # begun and ended
    allocator = memory.to_json()["allocator"]
    assert (allocator["allocated_peak"], allocator["reserved_peak"]) == (700, 1000)
    assert allocator["fragmentation"]["free_in_used"] == 200
    assert allocator["fragmentation"]["share"] == pytest.approx(200 / 900)
    assert "300 B  reserved and not allocated" in memory.text()
    with pytest.raises(torch.OutOfMemoryError) as raised:
        measure_memory(training(Net(64), keep=lambda out, loss: _fail()), updates=3)
    assert "the allocator had reserved" in "".join(raised.value.__notes__)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_allocator_agrees() -> None:
    model = Net(4096, 4096).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4096, 8, device="cuda")).pow(2).mean().backward()
            optimizer.step()

    memory = measure_memory(train, updates=4)
    assert memory.device == "cuda:0"
    assert memory.allocator is not None
    assert memory.allocator.allocated_peak >= 0.95 * memory.peak
    assert memory.allocator.reserved_peak >= memory.allocator.allocated_peak
    assert memory.lines

"""Time: every answer here is known by construction. Shares are compared, never absolute times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fallline.instruments.timing.clock import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    STALL,
    Stall,
)
from fallline.instruments.timing.device_trace import Device, read_trace
from fallline.instruments.timing.measure import measure_time
from fallline.instruments.timing.report import Compiled, Timing, verdict


class Slow(Dataset[torch.Tensor]):
    """Every sample takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.randn(8)


def training(
    data: Any, around: Callable[[], object] = lambda: None, model: nn.Module | None = None
) -> Callable[[], None]:
    torch.set_num_threads(1)
    model = model or nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x in data:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            around()

    return train


def test_a_slow_loader_is_input_bound_with_its_share() -> None:
    timing = measure_time(
        training(DataLoader(Slow(0.005), 4)), updates=12, loader_for=0
    )  # 20 ms per batch, and next to nothing else
    said = verdict(timing)
    assert said.kind == "input"
    assert said.share > 0.6
    assert timing.phases[DATA] >= 0.02
    assert "waits for the loader" in timing.text()
    assert len({(phase, at.path, at.line) for phase, at, _ in timing.lines}) == len(timing.lines)
    at = next(at for phase, at, _ in timing.lines if phase == DATA)
    assert "time.sleep" in Path(at.path).read_text().splitlines()[at.line - 1]


@pytest.mark.slow
def test_more_workers_are_measured_and_recommended_where_they_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})  # sleeping needs no core
    timing = measure_time(training(DataLoader(Slow(0.01), 8)), updates=8, loader_for=60)
    loading = timing.loading
    assert loading is not None
    assert loading.num_workers == 0
    assert [t.num_workers for t in loading.tried] == [0, 4, 2, 1]  # as it is, then what may help
    assert loading.best is not None and loading.now is not None
    assert loading.best.num_workers >= 2
    assert loading.best.wait is not None and loading.now.wait is not None
    assert loading.best.wait < 0.6 * loading.now.wait
    assert f"num_workers={loading.best.num_workers}" in verdict(timing).next


def test_trying_the_loader_draws_no_random_number() -> None:
    from fallline.instruments.timing.loader import try_loader

    loader = DataLoader(Slow(0.0), 4, shuffle=True)
    before = torch.get_rng_state()
    found = try_loader(loader, 0.0, torch.device("cpu"), 5.0, None)
    assert torch.equal(before, torch.get_rng_state())
    assert all(t.wait is not None for t in found.tried), found


def test_ctrl_c_while_loaders_are_tried_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from fallline.instruments.timing import loader

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loader, "_try", interrupted)
    timing = measure_time(training(DataLoader(Slow(0.002), 4)), updates=8, loader_for=5)
    assert (timing.partial, timing.status) == (True, 130)
    assert timing.window > 0
    assert "waits for the loader" in timing.text()


def test_time_around_the_model_is_host_bound_and_its_line_named() -> None:
    data = DataLoader(TensorDataset(torch.randn(4000, 8)), 4, collate_fn=lambda b: b[0][0])
    timing = measure_time(training(data, around=lambda: time.sleep(0.02)), updates=12, loader_for=0)
    said = verdict(timing)
    assert said.kind == "host"
    assert timing.share(OTHER) > 0.6
    assert "test_time.py" in said.text


def test_forward_and_backward_are_compute() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.new_ones(512, 256))

    data = DataLoader(TensorDataset(torch.randn(4000, 8)), 4, collate_fn=lambda b: b[0][0])
    timing = measure_time(training(data, model=Deep()), updates=10)
    assert verdict(timing).kind == "compute"
    assert timing.share(FORWARD) + timing.share(BACKWARD) > 0.5
    assert timing.loading is None  # nobody waits for it: nothing to try


def test_a_script_gets_json_and_a_chrome_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """\
            import torch
            from torch import nn
            torch.manual_seed(0)
            torch.set_num_threads(1)
            model = torch.compile(nn.Linear(4, 1), backend="eager")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100):
                x = torch.randn(8 if step % 2 else 9, 4)
                loss = model(x).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"loss {loss.item():.17g}")
            """
        )
    )
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    command = [sys.executable, "-m", "fallline", "measure", "time", "--output-format", "json"]
    done = subprocess.run(
        [*command, "--out", "measured", "--updates", "12", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer == json.loads((tmp_path / "measured" / "time.json").read_text())
    assert answer["updates"] == 12
    assert answer["compiled"]["graphs"] == 2  # one for each batch size, at the latest dynamic
    assert answer["compiled"]["recompiles"] == 1
    assert answer["compiled"]["breaks"] == {}  # we are not one
    trace = json.loads((tmp_path / "measured" / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"fallline: forward", "fallline: backward", "fallline: optimizer"} <= names
    # the losses are those of the script alone
    losses = re.findall(r"loss (\S+)", done.stderr)
    assert losses == re.findall(r"loss (\S+)", plain.stdout)[:12]


def test_nothing_is_changed_not_a_bit() -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.GELU(), nn.Linear(32, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), 8, shuffle=True):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        results.append([*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()])

    results: list[list[torch.Tensor]] = []
    train()
    measure_time(train, updates=9, loader_for=5)
    assert len(results) == 2
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_too_few_updates_are_said() -> None:
    timing = measure_time(training([torch.randn(4, 8)]), updates=20)
    assert timing.partial
    assert "no update was measured" in timing.text()


# -- what a device did, from traces as the profiler writes them ----------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, correlation: int = 0) -> dict[str, Any]:
    found = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {}}
    if correlation:
        found["args"] = {"correlation": correlation}
    return found


def trace_of(*kernels: tuple[str, float, float, float]) -> dict[str, Any]:
    """One update: data for 40 µs, forward 20, backward 20, optimizer 20. Kernels: (name, launched, begins, lasts)."""
    marks = [(DATA, 0, 40), (FORWARD, 40, 20), (BACKWARD, 60, 20), (OPTIMIZER, 80, 20)]
    events = [event("user_annotation", f"fallline: {name}", ts, dur) for name, ts, dur in marks]
    for number, (name, launched, begins, lasts) in enumerate(kernels, 1):
        events.append(event("cuda_runtime", "cudaLaunchKernel", launched, 1, number))
        events.append(
            event("gpu_memcpy" if "Memcpy" in name else "kernel", name, begins, lasts, number)
        )
    return {"traceEvents": events}


def test_idle_time_belongs_to_what_the_host_did() -> None:
    device = read_trace(
        trace_of(("gemm", 45, 50, 10), ("gemm", 62, 65, 15), ("adam", 85, 90, 10)), updates=1
    )
    assert device is not None
    assert device.window == pytest.approx(100e-6)
    assert device.busy == pytest.approx(35e-6)
    assert device.phases == pytest.approx({FORWARD: 10e-6, BACKWARD: 15e-6, OPTIMIZER: 10e-6})
    assert device.idle == pytest.approx(
        {DATA: 40e-6, FORWARD: 10e-6, BACKWARD: 5e-6, OPTIMIZER: 10e-6}
    )
    assert device.idle_share == pytest.approx(0.65)
    assert device.kernels == 3
    assert device.longest[0] == ("gemm", pytest.approx(25e-6))


def test_communication_counts_where_nothing_runs_beside_it() -> None:
    device = read_trace(
        trace_of(
            ("gemm", 45, 50, 30),
            ("ncclDevKernel_AllReduce", 62, 70, 30),
            ("Memcpy HtoD", 41, 42, 4),
        ),
        updates=1,
    )
    assert device is not None
    assert device.communication == pytest.approx(30e-6)
    assert device.exposed_communication == pytest.approx(20e-6)
    assert device.host_to_device == pytest.approx(4e-6)


def timed(device: Device, stalls: list[Stall] | None = None, **phases: float) -> Timing:
    return Timing(
        device="cuda:0",
        updates=20,
        window=12,
        partial=False,
        status=0,
        phases=phases,
        seconds=[sum(phases.values())] * 12,
        micro_batches=1,
        stalls=stalls or [],
        lines=[],
        on_device=device,
        loading=None,
        compiled=Compiled(),
    )


def test_the_verdict_about_a_device() -> None:
    from fallline.location import Location

    busy = Device(
        3, 0.010, busy=0.0095, kernels=100, phases={FORWARD: 0.0095}, idle={OTHER: 0.0005}
    )
    assert verdict(timed(busy, forward=0.01)).kind == "device"
    starved = Device(3, 0.010, busy=0.002, kernels=100, idle={DATA: 0.007, OTHER: 0.001})
    assert verdict(timed(starved, **{DATA: 0.007, FORWARD: 0.003})).kind == "input"
    launching = Device(3, 0.010, busy=0.003, kernels=2000, idle={FORWARD: 0.007})
    assert verdict(timed(launching, forward=0.01)).kind == "host"
    stall = Stall(Location("train.py", 7), ".item()")
    stall.count, stall.seconds = 1, 0.004
    stalled = Device(3, 0.010, busy=0.006, kernels=100, idle={FORWARD: 0.004})
    said = verdict(timed(stalled, [stall], **{FORWARD: 0.006, STALL: 0.004}))
    assert said.kind == "stall"
    assert "train.py:7" in said.text
    talking = Device(3, 0.010, busy=0.01, kernels=100, exposed_communication=0.004)
    assert verdict(timed(talking, forward=0.01)).kind == "communication"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_line_that_calls_item_is_named() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(4096, 1024, device="cuda")).pow(2).mean()
            loss.backward()
            optimizer.step()
            loss.item()

    timing = measure_time(train, updates=24)
    assert timing.device == "cuda:0"
    stall = timing.stalls[0]
    assert stall.what == ".item()"
    assert stall.count == 1
    line = Path(__file__).read_text().splitlines()[stall.at.line - 1]
    assert line.strip() == "loss.item()"
    assert timing.on_device is not None
    assert timing.on_device.kernels > 0
    assert timing.on_device.busy > 0

"""The frame under every instrument that runs a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fallline.instruments.script import Observer, Ran, Script, run_until

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 8, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.17g}")
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


class Told(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("batch_", "forward_", "backward_", "step_", "update_")):
            return lambda *args: self.events.append(name)
        return super().__getattribute__(name)


def test_a_script_is_ended_after_a_whole_iteration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    ran = run_until(Script(str(write(tmp_path, TRAIN))), told, updates=3)
    assert (ran.updates, ran.enough, ran.status, ran.partial) == (3, True, 0, False)
    assert len(ran.models) == len(ran.optimizers) == len(ran.loaders) == 1
    assert told.events == 3 * [
        *("batch_begins", "batch_ends", "forward_begins", "forward_ends"),
        *("backward_begins", "backward_ends", "step_begins", "step_ends", "update_ends"),
    ]
    out, err = capfd.readouterr()
    assert out == ""  # standard output is the measurement's
    assert len(err.split()) == 3  # the last update's iteration came to its end
    assert not hasattr(nn.Module.__call__, "__wrapped__")  # and everything is put back


def test_the_losses_are_those_of_the_plain_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, TRAIN.replace("range(100)", "range(1)"))
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    run_until(Script(str(path)), Observer(), updates=5)
    assert capfd.readouterr().err.split() == plain.stdout.split()[:5]


def test_a_script_that_fails_says_so_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, TRAIN + "        raise ValueError('mine')\n")
    ran = run_until(Script(str(path)), Observer(), updates=100)
    assert (ran.status, ran.partial, ran.updates) == (1, True, 8)
    err = capfd.readouterr().err
    assert err.strip().endswith("ValueError: mine")
    assert "fallline" not in err


def test_a_script_keeps_its_exit_status(tmp_path: Path) -> None:
    path = write(tmp_path, "import sys, torch\nsys.exit(7)")
    assert run_until(Script(str(path)), Observer(), updates=1).status == 7


def test_an_instrument_that_fails_does_not_break_the_script(tmp_path: Path) -> None:
    class Broken(Observer):
        def step_begins(self, optimizer: Any) -> None:
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        run_until(Script(str(write(tmp_path, TRAIN))), Broken(), updates=3)


def test_a_function_can_be_measured_too() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for (x,) in DataLoader(TensorDataset(torch.randn(10, 2))):
            model(x).sum().backward()
            optimizer.step()

    ran: Ran = run_until(train, Observer(), updates=4)
    assert ran.updates == 4
    assert ran.models == [model]
    assert ran.optimizers == [optimizer]


def test_steps_that_a_scaler_skips_count() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        while True:
            scaler.scale(model(torch.ones(1, 2)).sum() * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()

    assert run_until(train, Observer(), updates=3).updates == 3


def test_a_second_optimizer_finishes_the_iteration_too() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    steppers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
    done = []

    def train() -> None:
        while True:
            (first(torch.ones(1, 2)) + second(torch.ones(1, 2))).sum().backward()
            for stepper in steppers:
                stepper.step()
            done.append(1)

    assert run_until(train, Observer(), updates=3).updates == 3
    assert len(done) == 3


@pytest.mark.slow
def test_ctrl_c_ends_the_script_and_is_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        TRAIN.replace(
            "            print", "            import os; os.kill(os.getpid(), 2)\n            print"
        ),
    )
    code = """
        from fallline.instruments.script import *
        ran = run_until(Script("train.py"), Observer(), updates=50)
        print(ran.interrupted, ran.partial, ran.updates, ran.status)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout.split() == ["True", "True", "1", "130"]

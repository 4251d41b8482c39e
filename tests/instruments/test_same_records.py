"""What `fallline measure same` compares: fingerprints, and records of runs with planted differences, in this process."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fallline.instruments.same.compare import compare_updates, first_operation, load
from fallline.instruments.same.fingerprint import fingerprint, resolve, together
from fallline.instruments.same.record import Record
from fallline.instruments.same.sources import Draws
from fallline.instruments.script import run_until


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- fingerprints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_one_changed_bit_is_another_fingerprint(dtype: torch.dtype) -> None:
    values = (torch.arange(2_000) % 100).to(dtype)
    other = values.clone()
    other.view(torch.uint8)[777] ^= 1
    swapped = values.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    first, same, changed, moved = resolve(
        [fingerprint(t) for t in (values, values.clone(), other, swapped)]
    )
    assert first == same
    assert len({first, changed, moved}) == 3


def test_views_are_read_as_they_are_and_chunks_do_not_matter() -> None:
    wide = torch.arange(3 << 20, dtype=torch.float32)
    assert resolve([fingerprint(wide[::3])]) == resolve([fingerprint(wide[::3].clone())])
    other = wide.clone()
    other[-1] += 1
    assert resolve([fingerprint(wide)]) != resolve([fingerprint(other)])
    assert resolve([fingerprint(torch.tensor([0.0]))]) != resolve(
        [fingerprint(torch.tensor([-0.0]))]
    )
    assert fingerprint(torch.empty(0)) == 0


def test_several_in_one_know_their_order() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    assert resolve([together([fingerprint(a), fingerprint(b)])]) != resolve(
        [together([fingerprint(b), fingerprint(a)])]
    )


# -- two runs in this process ---------------------------------------------------------------------------------------


def recorded(train: Callable[[], None], updates: int = 5) -> list[dict[str, Any]]:
    file = io.StringIO()
    record = Record(file, until=updates)
    draws = Draws(record.drawn)
    draws.install()
    try:
        ran = run_until(train, record, updates=updates)
    finally:
        draws.remove()
    if ran.error is not None:
        raise ran.error
    return [json.loads(line) for line in file.getvalue().splitlines()]


def loop(spoil: Callable[[int, nn.Module, Tensor], Tensor], steps: int = 5) -> Callable[[], None]:
    """Training with something planted between the forward pass and the loss."""

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            out = model(torch.randn(8, 4))
            loss = spoil(step, model, out).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def test_the_same_twice_is_the_same() -> None:
    a, b = (recorded(loop(lambda step, model, out: out)) for _ in range(2))
    assert compare_updates(a, b) is None and first_operation(a, b) is None
    assert [row["update"] for row in a if "parameters" in row] == [0, 1, 2, 3, 4]
    phases = {e["phase"] for row in a for e in row.get("operations", ()) if "op" in e}
    assert phases == {"forward", "backward", "step"}


def test_a_recorded_run_trains_to_the_same_bits() -> None:
    trained: list[Tensor] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            loss = model(torch.randn(8, 4)).square().mean() * random.random()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        trained.append(torch.get_rng_state())

    random.seed(1)
    train()
    random.seed(1)
    recorded(train, updates=99)
    assert torch.equal(trained[0], trained[2]) and torch.equal(trained[1], trained[3])


def test_operations_are_kept_up_to_the_update_that_was_asked_for() -> None:
    file = io.StringIO()
    run_until(loop(lambda step, model, out: out), Record(file, until=1), updates=4)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert ["operations" in row for row in rows if "parameters" in row] == [
        True,
        True,
        False,
        False,
    ]
    file = io.StringIO()
    run_until(loop(lambda step, model, out: out), Record(file, until=9, seconds=0.0), updates=2)
    first = json.loads(file.getvalue().splitlines()[0])
    assert first["full"]  # no time was given for it


def here(function: Callable[..., Any], text: str) -> int:
    """The line of this file in `function` that holds `text`."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()[first - 1 :]
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_number_of_pythons_random_is_found_with_its_line() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out * random.random() if step == 3 else out

    random.seed()
    a, b = (recorded(loop(spoil)) for _ in range(2))
    difference, operation = compare_updates(a, b), first_operation(a, b)
    assert difference is not None and (difference.update, difference.stage) == (3, "losses")
    assert operation is not None and (operation.kind, operation.op) == ("number", "mul")
    assert operation.line == here(spoil, "random.random()")
    assert [(d.source, d.line) for d in operation.draws] == [("python", operation.line)]


def test_one_parameters_gradient_is_named() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 2:
            bias = model[2].bias  # type: ignore[index]
            bias.register_hook(lambda grad: grad + time.perf_counter())
        return out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    difference, operation = compare_updates(a, b), first_operation(a, b)
    assert difference is not None
    assert (difference.update, difference.stage, difference.parameters) == (
        2,
        "gradients",
        ["2.bias"],
    )
    assert operation is not None and (operation.kind, operation.phase) == ("number", "backward")
    assert operation.draws[0].source == "clock"


def test_data_that_no_operation_made_is_told_apart() -> None:
    numpy = pytest.importorskip("numpy")

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        noise = torch.from_numpy(numpy.random.default_rng().normal(size=(8, 1)).astype("float32"))
        return out + noise if step == 1 else out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.update) == ("data", 1)
    assert operation.draws[0].source == "numpy"


def test_torchs_own_draws_are_told_apart() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 1:
            torch.seed()
        return nn.functional.dropout(out, 0.5)

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.update) == ("random", 1)


def test_an_operation_with_the_same_inputs_and_other_results_is_to_blame() -> None:
    @torch.library.custom_op("fallline_test::shaky", mutates_args=())
    def shaky(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() + x.numpy().dtype.type(time.time_ns() % 1000))

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out + shaky(out.detach()) if step == 2 else out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None
    assert (operation.kind, operation.op, operation.update) == ("kernel", "shaky", 2)
    assert operation.line == here(spoil, "shaky(out")


def test_memory_that_nobody_wrote_is_told_apart() -> None:
    count = [0]

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step != 1:
            return out
        unwritten = torch.empty(8, 1)
        count[0] += 1
        unwritten.numpy()[:] = count[
            0
        ]  # what happens to be there, and another thing in the next run
        return out + unwritten

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.op) == ("unwritten", "add")


def test_memory_that_is_written_before_it_is_read_is_fine() -> None:
    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        return out + torch.empty(8, 1).normal_() + torch.empty_like(out).zero_()

    a, b = (recorded(loop(spoil)) for _ in range(2))
    assert first_operation(a, b) is None


def test_another_order_is_told_apart() -> None:
    turn = [0]

    def spoil(step: int, model: nn.Module, out: Tensor) -> Tensor:
        if step == 1:
            turn[0] += 1
            for name in ("tanh", "sin") if turn[0] == 1 else ("sin", "tanh"):
                out = getattr(out, name)()
        return out

    a, b = (recorded(loop(spoil)) for _ in range(2))
    operation = first_operation(a, b)
    assert operation is not None and (operation.kind, operation.op) == ("order", "tanh")


def test_a_record_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text('{"update": 0, "parameters": {}}\n{"update": 1, "par')
    assert [row["update"] for row in load(path)] == [0]
    assert load(tmp_path / "nowhere") == []

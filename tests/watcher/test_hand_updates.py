"""Training without torch.optim is training: its updates are counted and its losses recorded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

import fallline  # noqa: E402
from fallline.watcher.hand_updates import BY_HAND  # noqa: E402

RATE = 0.05


def subtract(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p -= RATE * p.grad
            p.grad = None


def add_to_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-RATE)
    model.zero_grad()


def assign_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data - RATE * p.grad
        p.grad.zero_()


def copy(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            gradient = p.grad
            p.copy_(p - RATE * gradient)
    model.zero_grad()


def train(
    update: Callable[[nn.Module], None], windows: int = 5, micro_batches: int = 1
) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    losses = []
    for _ in range(windows):
        total = 0.0
        for _ in range(micro_batches):
            loss: Tensor = model(torch.randn(8, 4)).square().mean() / micro_batches
            loss.backward()
            total += loss.item() / micro_batches
        update(model)
        losses.append(total)
    return losses


def rows(folder: Path, program: Callable[[], object]) -> dict[str, list[tuple[int, float, int]]]:
    with fallline.watch(out=folder / "run") as watch:
        program()
    assert [f.code for f in watch.findings if f.code != "FL118"] == []
    tracks = watch.series.tracks if watch.series is not None else []
    return {
        t.optimizer: [(r.index, round(r.loss, 6), r.micro_batches) for r in t.rows] for t in tracks
    }


@pytest.mark.parametrize("update", [subtract, add_to_data, assign_data, copy])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_an_update_by_hand_is_an_update(
    tmp_path: Path, update: Callable[[nn.Module], None], micro_batches: int
) -> None:
    losses: list[float] = []
    found = rows(tmp_path, lambda: losses.extend(train(update, 5, micro_batches)))
    expected = [(i, round(loss, 6), micro_batches) for i, loss in enumerate(losses)]
    assert found == {BY_HAND: expected}


def test_the_result_is_the_same(tmp_path: Path) -> None:
    watched: list[float] = []
    rows(tmp_path, lambda: watched.extend(train(subtract)))
    assert watched == train(subtract)


def clear_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data -= RATE * p.grad
        p.grad.data.zero_()


def never_clear(model: nn.Module) -> None:
    for p in model.parameters():
        p.data -= RATE * p.grad


@pytest.mark.parametrize(("update", "codes"), [(clear_data, []), (never_clear, ["FL106"])])
def test_gradients_that_nothing_clears_are_told(
    tmp_path: Path, update: Callable[[nn.Module], None], codes: list[str]
) -> None:
    with fallline.watch(out=tmp_path / "run") as watch:
        train(update, windows=8, micro_batches=2)
    assert [f.code for f in watch.findings if f.code != "FL118"] == codes


def test_looking_at_gradients_is_not_an_update(tmp_path: Path) -> None:
    def look(model: nn.Module) -> None:
        for p in model.parameters():
            p.grad.norm().item()
        model.zero_grad()

    assert BY_HAND not in rows(tmp_path, lambda: train(look))


def test_an_attack_beside_an_optimizer_is_not_an_update(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            x, delta = torch.randn(8, 4), torch.zeros(8, 4, requires_grad=True)
            model(x + delta).square().mean().backward()
            delta.data.add_(delta.grad.sign(), alpha=0.1)
            optimizer.zero_grad()
            model(x + delta.detach()).square().mean().backward()
            optimizer.step()

    assert list(rows(tmp_path, program)) == ["optimizer#1"]


def test_a_run_without_an_optimizer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "w = torch.zeros(4, requires_grad=True)\n"
        "for _ in range(7):\n"
        "    ((w - 1) ** 2).sum().backward()\n"
        "    with torch.no_grad():\n"
        "        w -= 0.1 * w.grad\n"
        "        w.grad.zero_()\n"
    )
    command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "updates by hand\n    updates         7\n    loss            4 → " in done.stderr
    assert (tmp_path / "run" / "findings.json").read_text() == "[]\n"


def _overflows(model: nn.Module, at: int) -> None:
    """One update is far too large."""
    for index in range(at + 3):
        model(torch.ones(8, 4)).abs().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= (1e39 if index == at else RATE) * p.grad
                p.grad.zero_()


def test_a_parameter_that_an_update_by_hand_spoils_is_named_with_that_update(
    tmp_path: Path,
) -> None:
    with fallline.watch(out=tmp_path / "run") as watch:
        _overflows(nn.Linear(4, 1), 12)
    (found,) = [f for f in watch.findings if f.code == "FL622"]
    assert found.evidence["step"] == 12 and "since update 12" in found.message
    assert "p.grad" in Path(__file__).read_text().splitlines()[found.at.line - 1]


def test_a_loss_that_overflows_is_reported_at_its_update(tmp_path: Path) -> None:
    losses = []
    with fallline.watch(out=tmp_path / "run") as watch:
        w = torch.ones(4, requires_grad=True)
        for _ in range(20):
            loss = (w**2).sum()
            losses.append(loss.item())
            loss.backward()
            with torch.no_grad():
                w -= 1000.0 * w.grad
                w.grad.zero_()
    (found,) = [f for f in watch.findings if f.code == "FL620"]
    first = losses.index(float("inf"))
    assert first > 2 and found.evidence["step"] == first
    assert f"at update {first}" in found.message

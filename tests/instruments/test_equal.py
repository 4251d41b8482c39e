"""One update in other ways: each planted fault is named with its ratio, and right loops are called equal."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from equal_loops import plain  # the benchmarks are scripts, not a package

from fallline.instruments.equal import Comparison, Equal, equal
from fallline.instruments.equal.root import divisors_of
from fallline.instruments.script import Script

LONG = pytest.mark.long  # each is a handful of processes; benchmarks/equal.py makes all of them


def compared(loop: str, fault: str, *only: str) -> Equal:
    return equal(functools.partial(plain.LOOPS[loop], fault), ranks=1, only=only)


def different(answer: Equal) -> Comparison:
    """The one comparison that found something."""
    [found] = [c for c in answer.comparisons if not c.equal]
    return found


@pytest.mark.parametrize(
    ("loop", "fault", "only", "what", "code", "ratio"),
    [
        ("classify", "undivided and clipped", "accumulation", "accumulation", "FL104", 4.0),
        pytest.param(
            "classify", "divided twice", "accumulation", "accumulation", "FL129", 0.25, marks=LONG
        ),
        pytest.param(
            "classify", "divided inside", "accumulation", "accumulation", "FL110", None, marks=LONG
        ),
        ("classify", "wiped", "accumulation", "accumulation", "FL105", None),
        pytest.param(
            "classify", "clip each", "accumulation", "accumulation", "FL103", None, marks=LONG
        ),
        pytest.param(
            "classify", "scaled after clipping", "accumulation", "clipping", None, 0.25, marks=LONG
        ),
        ("classify", "remainder", "remainder", "remainder", "FL107", 0.75),
        ("language", "mean of means", "accumulation", "tokens", "FL111", None),
        ("blocks", "checkpoint without rng", "features", "checkpointing", "FL407", None),
        ("evaluated", "evaluation divided twice", "evaluation", "evaluation", None, 1 / 8),
        ("shifted", "labels shifted twice", "labels", "labels", None, None),
        ("drawn", "drawn undivided", "accumulation", "accumulation", "FL104", 4.0),
    ],
)
def test_a_fault_is_named(
    loop: str, fault: str, only: str, what: str, code: str | None, ratio: float | None
) -> None:
    answer = compared(loop, fault, only)
    found = different(answer)
    assert (answer.verdict, found.what, found.code) == ("different", what, code)
    assert found.path.endswith("plain.py") and found.line
    if ratio is not None:
        assert found.ratio == pytest.approx(ratio, rel=1e-3)
        assert f"{found.ratio:.2f}x" in found.message
    elif found.what != "labels":
        assert found.cosine is not None and found.cosine < 0.99


@pytest.mark.parametrize(
    ("loop", "fault", "only"),
    [
        ("classify", "right flush", ("accumulation", "remainder", "order")),
        pytest.param("classify", "right autocast", ("accumulation",), marks=LONG),
        pytest.param("classify", "right autocast inside", ("accumulation",), marks=LONG),
        pytest.param("blocks", "right compile", ("accumulation",), marks=LONG),
        pytest.param("classify", "right by hand", ("accumulation",), marks=LONG),
        ("language", "right", ("accumulation",)),
        pytest.param("blocks", "right checkpoint", ("features",), marks=LONG),
        pytest.param("evaluated", "right sum over samples", ("evaluation",), marks=LONG),
        ("split", "right", ("accumulation",)),
    ],
)
def test_a_right_loop_is_equal(loop: str, fault: str, only: tuple[str, ...]) -> None:
    answer = compared(loop, fault, *only)
    assert answer.verdict == "equal", answer.text()
    assert len(answer.comparisons) >= len(only), answer.text()
    assert all(c.code is None for c in answer.comparisons)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "fault", "ranks", "what", "code", "ratio"),
    [
        ("accelerated", "divided twice", 1, "accumulation", "FL129", 0.25),
        ("accelerated", "remainder", 1, "remainder", "FL107", 0.75),
        ("accelerated", "by ranks twice", 2, "ranks", "FL137", 0.5),
        ("lightened", "divided twice", 1, "accumulation", "FL129", 0.25),
        ("trained", "mean of means", 1, "tokens", "FL111", None),
        ("ranked", "by ranks twice", 2, "ranks", "FL137", 0.5),
        ("ranked", "fsdp by ranks twice", 2, "ranks", "FL137", 0.5),
        ("sped", "zero 2, divided twice", 1, "accumulation", "FL129", 0.25),
    ],
)
def test_a_fault_in_a_framework_is_named(
    module: str, fault: str, ranks: int, what: str, code: str, ratio: float | None
) -> None:
    loops = importlib.import_module(f"equal_loops.{module}").LOOPS
    loop = loops.get("train") or loops["classify"]
    found = different(equal(functools.partial(loop, fault), ranks=ranks))
    assert (found.what, found.code) == (what, code)
    assert ratio is None or found.ratio == pytest.approx(ratio, rel=1e-3)


@pytest.mark.long
def test_accelerate_on_ranks_without_a_device_and_with_a_shuffle_of_its_own() -> None:
    """It trains each rank alone unless it is told that there is no GPU, and shuffles for ranks in another order than for one process."""
    train = importlib.import_module("equal_loops.accelerated").train
    answer = equal(functools.partial(train, "launched"), ranks=2, only=("ranks",))
    assert [(c.what, c.equal) for c in answer.comparisons] == [("ranks", True)], answer.text()


@pytest.mark.long
def test_an_example_that_is_broken_twice(project: Path) -> None:
    folder = Path(__file__).parents[2] / "examples/char_language_model"
    answer = equal(str(folder / "broken.py"))
    found = {c.code: c.ratio for c in answer.comparisons if not c.equal}
    assert found == {"FL104": pytest.approx(4, rel=1e-3), "FL201": 65536}
    assert equal(str(folder / "repaired.py")).verdict == "equal"


SCRIPT = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.makedirs("out", exist_ok=True)
with open("out/log.txt", "a") as log:
    log.write("begun")
assert os.listdir("out") == ["log.txt"] and open("out/log.txt").read() == "begun"
open("kept.txt", "w").write("overwritten")
os.remove("doomed.txt")
assert not os.path.exists("doomed.txt")
torch.manual_seed(0)
model = nn.Linear(4, 1)
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
print("done")
"""


def test_the_command_writes_nothing_of_the_script(
    fallline: Callable[..., tuple[int, str, str]], project: Path
) -> None:
    (project / "train.py").write_text(SCRIPT)
    (project / "kept.txt").write_text("kept")
    (project / "doomed.txt").write_text("still here")
    status, out, _ = fallline("equal", "--out", "found", "--only", "accumulation", "train.py")
    assert status == 1
    assert "2.00x the big batch's: the loss is not divided by 2 (train.py:22, FL104)" in out
    answer = json.loads((project / "found/equal.json").read_text())
    assert answer["verdict"] == "different"
    [found] = answer["comparisons"]
    assert found["ratio"] == pytest.approx(2, rel=1e-4)
    assert (found["what"], found["path"], found["line"]) == ("accumulation", "train.py", 22)
    assert sorted(p.name for p in project.iterdir()) == ["doomed.txt", "found", "kept.txt", "train.py"]  # fmt: skip
    assert (project / "kept.txt").read_text() == "kept"


def test_a_script_that_does_not_train_is_wrong_usage(
    fallline: Callable[..., tuple[int, str, str]], project: Path
) -> None:
    (project / "train.py").write_text("import torch\nprint(torch.ones(2))\n")
    status, _, err = fallline("equal", "train.py")
    assert status == 2
    assert "without an update" in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import transformers  # made for any environment", {"transformers"}),
        ("import os\nos.environ['A'] = '1'\nimport transformers", set()),
        ("import scipy\nimport os\nos.environ['A'] = '1'\nimport transformers", {"scipy"}),
        ("import trl\ndef main():\n    import os\n    os.environ['A'] = '1'", {"trl"}),
        ("import datasets, trl", {"trl"}),
        ("import trl as", set()),
    ],
)
def test_what_is_imported_ahead(
    text: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the environment is set first, and not what is a folder of the user's own."""
    from fallline.instruments.equal.mother import _first_imported

    monkeypatch.chdir(tmp_path)
    (tmp_path / "project/datasets").mkdir(parents=True)
    (tmp_path / "project/train.py").write_text(text)
    assert _first_imported(Script("project/train.py")) == expected


@pytest.mark.parametrize("inside", [False, True])
def test_a_package_that_asks_for_the_device_is_not_imported_ahead(
    inside: bool,
    fallline: Callable[..., tuple[int, str, str]],
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes that are forked afterwards could not use CUDA: the script would fail in them. It may also ask only in the first run."""
    installed = tmp_path / "installed/timm"
    installed.mkdir(parents=True)
    spoils = "import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n"
    (installed / "__init__.py").write_text("" if inside else spoils)
    (installed / "models.py").write_text(spoils if inside else "")
    path = f"{installed.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    first = "import torch\nassert not torch.cuda._is_in_bad_fork()\nimport timm.models\n"
    (project / "train.py").write_text(first + SCRIPT)
    for name in ("kept.txt", "doomed.txt"):
        (project / name).write_text("")
    status, _, err = fallline("equal", "--only", "accumulation", "train.py")
    assert status == 1, err


def test_a_gradient_of_nothing_but_rounding_is_not_compared() -> None:
    """Cross-entropy over one class is 0 whatever the model says, and so is its gradient."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train() -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    answer = equal(train, ranks=1, only=("precision", "order"))
    assert answer.verdict == "unknown"
    assert {"precision", "order"} <= {one.what for one in answer.unvaried}


def test_what_the_loop_undoes_is_no_divisor() -> None:
    """Accelerate and DeepSpeed divide by the number of micro-batches; a loop that divides by the tokens of all of them multiplies first."""
    import torch

    loss = torch.ones(3, requires_grad=True).sum()
    assert divisors_of(loss / 4 * 0.5) == [2.0, 4.0]
    assert divisors_of(loss / 7 * 4 / 4) == [7.0]
    assert divisors_of(loss / 4 / 4) == [4.0, 4.0]


def test_a_longer_batch_is_of_the_same_kind() -> None:
    """What a tokenizer makes has a `.to(device)` of its own."""
    import torch

    from fallline.instruments.equal.loaders import padded

    class Encoding(UserDict[str, torch.Tensor]):
        pass

    longer = padded(Encoding(input_ids=torch.ones(2, 3), attention_mask=torch.ones(2, 3)), 8)
    assert isinstance(longer, Encoding) and longer["input_ids"].shape == (2, 11)

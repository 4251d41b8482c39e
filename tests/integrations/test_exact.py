"""Exact accumulation inside Lightning and Accelerate: the update equals the big batch's, where the framework alone is off."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from fallline.errors import EngineError
from gloo import ATTEMPTS, aborted

torch.set_num_threads(1)
pytestmark = pytest.mark.slow
IGNORED = -100
ACCUMULATE = 4


class Texts(Dataset[Any]):
    """Ten batches of three texts whose labels are mostly padding: between 1 and 8 tokens count in each text."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 11, (30, 8), generator=generator)
        self.labels = torch.randint(0, 11, (30, 8), generator=generator)
        lengths = torch.randint(1, 9, (30,), generator=generator)
        lengths[:12] = torch.tensor([8] * 6 + [1] * 6)
        for labels, length in zip(self.labels, lengths.tolist(), strict=True):
            labels[length:] = IGNORED

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[index], self.labels[index]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=IGNORED)


def tokens(batch: Any) -> torch.Tensor:
    return (batch[1] != IGNORED).sum()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def big_batches(windows: list[list[Any]], *, by_token: bool) -> torch.Tensor:
    """What training with one backward for each update gives: of all tokens alike, or of micro-batch means alike."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for window in windows:
        optimizer.zero_grad()
        if by_token:
            loss_of(model, [torch.cat(parts) for parts in zip(*window, strict=True)]).backward()
        else:
            torch.stack([loss_of(model, batch) for batch in window]).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return flat(model)


BATCHES = list(DataLoader(Texts(), batch_size=3))
WINDOWS = [BATCHES[:4], BATCHES[4:8], BATCHES[8:]]  # ten micro-batches, four for an update


def off(update: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative to how far training went."""
    return float((update - truth).norm() / (truth - flat(make_model())).norm())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_lightning(tmp_path: Path, *callbacks: Any, **options: Any) -> torch.Tensor:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    module = Module()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=ACCUMULATE,
        gradient_clip_val=0.5,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(module, DataLoader(Texts(), batch_size=3))
    return flat(module.net)


def by_accelerate(*, exact: bool, by_token: bool = False) -> torch.Tensor:
    from accelerate import Accelerator

    from fallline.integrations.accelerate import exact_accumulation

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    if exact:
        accelerator = exact_accumulation(accelerator)
    model = make_model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(Texts(), batch_size=3)
    )
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            if by_token:
                accelerator.backward(loss, mean_over=tokens(batch))
            else:
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def test_lightning_by_token(tmp_path: Path) -> None:
    from fallline.integrations.lightning import ExactAccumulation

    truth = big_batches(WINDOWS, by_token=True)
    assert off(by_lightning(tmp_path), truth) > 0.1
    assert off(by_lightning(tmp_path, ExactAccumulation(mean_over=tokens)), truth) < 1e-6


def test_lightning_remainder(tmp_path: Path) -> None:
    from fallline.integrations.lightning import ExactAccumulation

    truth = big_batches(WINDOWS, by_token=False)
    assert off(by_lightning(tmp_path), truth) > 0.02
    assert off(by_lightning(tmp_path, ExactAccumulation()), truth) < 1e-6


def test_accelerate_by_token() -> None:
    truth = big_batches(WINDOWS, by_token=True)
    assert off(by_accelerate(exact=False), truth) > 0.1
    assert off(by_accelerate(exact=True, by_token=True), truth) < 1e-6


def test_accelerate_remainder() -> None:
    truth = big_batches(WINDOWS, by_token=False)
    assert off(by_accelerate(exact=False), truth) > 0.02
    assert off(by_accelerate(exact=True), truth) < 1e-6


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_two_ranks_make_the_update_of_all_their_tokens(tmp_path: Path, framework: str) -> None:
    if framework == "lightning":  # which shuffles with a sampler of its own
        texts = Texts()
        shards = [[texts[i] for i in DistributedSampler(texts, 2, rank)] for rank in range(2)]
        windows = [
            [tuple(map(torch.stack, zip(*shard[a:b], strict=True))) for shard in shards]
            for a, b in ((0, 12), (12, 15))
        ]
    else:  # every second batch is
        windows = [BATCHES[:8], BATCHES[8:]]
    truth = big_batches(windows, by_token=True)
    run_ranks(framework, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt")
    assert off(found["plain"], truth) > 0.1
    assert off(found["exact"], truth) < 1e-6


def run_ranks(framework: str, out: Path) -> None:
    for _ in range(ATTEMPTS):
        ended, said = launched_ranks(framework, out)
        if not aborted(said):
            break
    assert ended == [0, 0], said


def launched_ranks(framework: str, out: Path) -> tuple[list[int], str]:
    """The worker as torchrun would start it, twice: how both ended, and what they said."""
    worker = str(Path(__file__).parent / "exact_worker.py")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launched = [
        subprocess.Popen(
            [sys.executable, worker, framework, str(out)],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "exact",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=900)[0] for process in launched]
    return [process.returncode for process in launched], "\n".join(said)


def test_full_windows_keep_lightnings_bits(tmp_path: Path, monkeypatch: Any) -> None:
    from fallline.integrations.lightning import ExactAccumulation

    monkeypatch.setattr(Texts, "__len__", lambda self: 24)
    assert torch.equal(by_lightning(tmp_path), by_lightning(tmp_path, ExactAccumulation()))


def test_watched_and_exact_together_find_nothing(tmp_path: Path) -> None:
    from fallline.integrations.lightning import ExactAccumulation, FalllineCallback

    watching = FalllineCallback(out=tmp_path / "run")
    truth = big_batches(WINDOWS, by_token=True)
    update = by_lightning(tmp_path, watching, ExactAccumulation(mean_over=tokens))
    assert off(update, truth) < 1e-6
    assert [f.code for f in watching.findings if f.severity != "info"] == []


def test_what_lightning_alone_does_is_found_with_the_line_that_repairs_it(tmp_path: Path) -> None:
    from fallline.integrations.lightning import FalllineCallback

    watching = FalllineCallback(out=tmp_path / "run")
    by_lightning(tmp_path, watching)
    (finding,) = [f for f in watching.findings if f.severity != "info"]
    assert finding.code == "FL111"
    assert "ExactAccumulation(mean_over=...)" in finding.message


def test_a_callback_leaves_the_programs_own_watch_alone(tmp_path: Path) -> None:
    import fallline
    from fallline.integrations.lightning import FalllineCallback

    watching = FalllineCallback(out=tmp_path / "callback")
    with fallline.watch(out=tmp_path / "own") as own:
        by_lightning(tmp_path, watching)
    assert own.folder == tmp_path / "own"
    assert own.series is not None
    assert watching.folder is None


def test_manual_optimization_is_told_what_to_use(tmp_path: Path) -> None:
    import lightning as L

    from fallline.integrations.lightning import ExactAccumulation

    class Module(L.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, index: int) -> None:
            raise AssertionError("never reached")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[ExactAccumulation()],
    )
    with pytest.raises(EngineError, match=r"fallline\.Stepper"):
        trainer.fit(Module(), DataLoader(Texts(), batch_size=3))


def test_two_backwards_in_one_micro_batch_are_refused() -> None:
    from accelerate import Accelerator

    from fallline.integrations.accelerate import exact_accumulation

    accelerator = exact_accumulation(Accelerator(cpu=True, gradient_accumulation_steps=2))
    model = accelerator.prepare(make_model())
    batch = next(iter(DataLoader(Texts(), batch_size=3)))
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model, batch))
        with pytest.raises(EngineError, match="once in each"):
            accelerator.backward(loss_of(model, batch))

"""What Lightning and Accelerate do with logged values, callbacks, batches and states, as claims/lightning-logging.md and claims/accelerating.md say it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.triage.provoke import _QUIET, _lightning
from torch import nn
from torch.utils.data import DataLoader


def _fit(module: Any, batches: int = 4, size: int = 2, valid: bool = True, **given: Any) -> Any:
    lightning, _ = _lightning()
    trainer = lightning.Trainer(num_sanity_val_steps=0, **{**_QUIET, "max_epochs": 1, **given})
    data = torch.arange(2.0 * batches * size).view(-1, 2)
    loaders = [DataLoader(data, size), DataLoader(data, size)][: 2 if valid else 1]
    trainer.fit(module, *loaders, ckpt_path=None)
    return trainer


def _validated(log: Any) -> Any:
    _, Module = _lightning()

    class Logged(Module):  # type: ignore[misc,valid-type]
        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            log(self, batch, index)

    return Logged()


def lightning_averages_by_batch_size() -> None:
    lightning, _ = _lightning()
    module = _validated(lambda self, batch, index: self.log("v", float(index)))
    trainer = lightning.Trainer(**_QUIET)
    trainer.validate(module, DataLoader(torch.ones(3, 2), 2), verbose=False)
    assert abs(float(trainer.callback_metrics["v"]) - 1 / 3) < 1e-6  # 0 for two rows, 1 for one


def lightning_monitors_logged_names() -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    values = iter([3.0, 1.0, 2.0])

    def log(self: Any, batch: torch.Tensor, index: int) -> Any:
        if index == 0:
            self.now = next(values)
        self.log("val_loss", self.now)
        return {"returned": torch.ones(1)}

    with TemporaryDirectory() as folder:
        keep = ModelCheckpoint(folder, filename="{epoch}", monitor="val_loss")
        given = {"enable_checkpointing": True, "callbacks": [keep], "max_epochs": 3}
        trainer = _fit(_validated(log), **given)
        assert Path(keep.best_model_path).stem == "epoch=1" and keep.mode == "min"
    assert "val_loss" in trainer.callback_metrics and "returned" not in trainer.callback_metrics


def lightning_patience_counts_validations() -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    stop = EarlyStopping("val_loss", patience=2)
    module = _validated(lambda self, batch, index: self.log("val_loss", 1.0))
    trainer = _fit(module, callbacks=[stop], max_epochs=20, check_val_every_n_epoch=2)
    assert trainer.current_epoch == 6 and stop.wait_count == 2


def lightning_validates_only_with_both() -> None:
    seen: list[int] = []
    _fit(_validated(lambda self, batch, index: seen.append(index)), valid=False)
    assert not seen


def lightning_epoch_end_has_no_outputs() -> None:
    import inspect

    lightning, _ = _lightning()
    for name in ("on_train_epoch_end", "on_validation_epoch_end"):
        hook = getattr(lightning.LightningModule, name)
        assert list(inspect.signature(hook).parameters) == ["self"]


def lightning_steps_schedulers_by_epoch() -> None:
    _, Module = _lightning()
    for interval, rate in (("epoch", 0.1), ("step", 0.1**3)):

        class Scheduled(Module):  # type: ignore[misc,valid-type]
            by = interval

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
                scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
                plan = {"scheduler": scheduler, "interval": self.by}
                return {"optimizer": optimizer, "lr_scheduler": plan}

        trainer = _fit(Scheduled(), batches=3, valid=False)
        assert abs(trainer.optimizers[0].param_groups[0]["lr"] - rate) < 1e-9
        assert trainer.estimated_stepping_batches == 3


def lightning_stops_at_the_first_limit() -> None:
    _, Module = _lightning()
    assert _fit(Module(), valid=False, max_epochs=9, max_steps=6).global_step == 6
    halved = _fit(Module(), valid=False, max_epochs=2, accumulate_grad_batches=2)
    assert halved.global_step == 4


def lightning_logs_every_n_steps() -> None:
    from lightning.pytorch.loggers import CSVLogger

    _, Module = _lightning()

    class Logged(Module):  # type: ignore[misc,valid-type]
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).sum()
            self.log("loss", loss)
            return loss

    for every, points in ((50, 0), (2, 2)):
        with TemporaryDirectory() as folder:
            logger = CSVLogger(folder)
            _fit(Logged(), valid=False, logger=logger, log_every_n_steps=every)
            path = Path(logger.log_dir) / "metrics.csv"
            rows = path.read_text().splitlines()[1:] if path.exists() else []
            assert len(rows) == points


def logged_values_are_averaged_metrics_are_not() -> None:
    from torchmetrics.classification import BinaryF1Score

    target, guess = torch.tensor([1, 1, 0, 1]), torch.tensor([1, 0, 0, 0])

    def log(self: Any, batch: torch.Tensor, index: int) -> None:
        part = slice(2 * index, 2 * index + 2)
        value = self.f1(guess[part], target[part])
        self.log("averaged", value, batch_size=2)
        self.log("whole", self.f1)

    lightning, _ = _lightning()
    module = _validated(log)
    module.f1 = BinaryF1Score()
    trainer = lightning.Trainer(**_QUIET)
    trainer.validate(module, DataLoader(torch.ones(4, 2), 2), verbose=False)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert abs(logged["whole"] - 0.5) < 1e-6 and abs(logged["averaged"] - 1 / 3) < 1e-3
    assert module.f1.tp == 0  # reset at the end of the epoch


def lightning_restores_only_through_fit() -> None:
    lightning, Module = _lightning()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "one.ckpt"
        _fit(Module(), valid=False, max_epochs=2).save_checkpoint(path)
        module = Module.load_from_checkpoint(path)
        fresh = lightning.Trainer(max_epochs=3, **_QUIET)
        assert fresh.current_epoch == 0
        loader = DataLoader(torch.ones(4, 2), 2)
        fresh.fit(module, loader, ckpt_path=path)
        assert fresh.current_epoch == 3 and fresh.global_step == 8 + 2
        assert "layer.weight" in torch.load(path, weights_only=True)["state_dict"]


def lightning_fast_dev_run_runs_one_batch() -> None:
    _, Module = _lightning()
    assert _fit(Module(), fast_dev_run=True, max_epochs=5).global_step == 1
    seen: list[torch.Tensor] = []

    class Same(Module):  # type: ignore[misc,valid-type]
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            seen.append(batch)
            out: torch.Tensor = self.layer(batch).sum()
            return out

    _fit(Same(), overfit_batches=1, max_epochs=2)
    assert len(seen) == 2 and torch.equal(seen[0], seen[1])


# --- Accelerate ----------------------------------------------------------------------------------------------------------------------
def _accelerator(**given: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return Accelerator(cpu=True, **given)


def accelerate_divides_the_loss() -> None:
    for steps in (1, 4):
        accelerator = _accelerator(gradient_accumulation_steps=steps)
        weight = nn.Parameter(torch.ones(1))
        loss = (2 * weight).sum()
        accelerator.backward(loss)
        assert weight.grad is not None
        assert weight.grad.item() == 2 / steps and loss.item() == 2


def summed_losses_give_the_same_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)
    losses = [(weight * n).pow(2).sum() for n in range(1, 4)]
    (together,) = torch.autograd.grad(sum(losses), weight, retain_graph=True)  # type: ignore[arg-type]
    for loss in losses:
        loss.backward()
    assert weight.grad is not None and torch.allclose(weight.grad, together)


def accelerate_shards_by_batch() -> None:
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    plain = BatchSampler(SequentialSampler(range(16)), 4, drop_last=False)
    mine = [list(BatchSamplerShard(plain, 2, rank)) for rank in range(2)]
    assert [len(part) for part in mine] == [2, 2] and len(mine[0][0]) == 4
    cut = list(BatchSamplerShard(plain, 2, 0, split_batches=True))
    assert len(cut) == 4 and len(cut[0]) == 2


def accelerate_wraps_what_it_is_given() -> None:
    accelerator = _accelerator()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, stepped, loader = accelerator.prepare(
        model, optimizer, DataLoader(torch.ones(4, 2), 2)
    )
    held = {id(p) for p in stepped.param_groups[0]["params"]}
    assert {id(p) for p in wrapped.parameters()} == held
    assert next(iter(loader)).device == accelerator.device


def accelerate_saves_what_was_prepared() -> None:
    accelerator = _accelerator()
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    model = accelerator.prepare(model)
    with TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        before = model.weight.clone()
        with torch.no_grad():
            model.weight.zero_()
            other.weight.zero_()
        accelerator.load_state(folder)
        assert any("random" in path.name for path in Path(folder).iterdir())
    assert torch.equal(model.weight, before) and not other.weight.any()


def skip_first_batches_returns_a_loader() -> None:
    accelerator = _accelerator()
    loader = accelerator.prepare(DataLoader(torch.arange(6), 2))
    skipped = accelerator.skip_first_batches(loader, 1)
    assert [len(list(skipped)) for _ in range(2)] == [2, 2]  # each time it is iterated
    assert len(list(loader)) == 3


def accelerate_autocasts_the_forward() -> None:
    accelerator = _accelerator(mixed_precision="bf16")
    seen: list[torch.dtype] = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    model = accelerator.prepare(Watched(2, 1))
    assert model(torch.ones(1, 2)).dtype == torch.float32 and seen == [torch.bfloat16]
    _accelerator()

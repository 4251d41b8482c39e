"""Mistakes that real repositories had outside a loop in view: in wrappers, helpers, hand-made lists, and methods of a framework's class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

sys.path.insert(0, str(Path(__file__).parent))
from in_classes_wrong import WRONG

RIGHT = {
    "statistics that are all detached": """\
import torch


def loss(logprobs, old_logprobs, advantages):
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = (ratio > 1.2).float().mean()
    pg_loss = -(advantages * ratio).mean()
    stats = dict(a=pg_loss.detach(), b=advantages.detach(), c=ratio.detach(), clipped=clipped)
    return pg_loss, stats
""",
    "a sum in a dict that every batch makes anew": """\
import torch


def train(model, criterion, optimizer, loader):
    model.train()
    for x, y in loader:
        logs = {"loss": 0}
        optimizer.zero_grad()
        for part in model(x):
            loss = criterion(part, y)
            logs["loss"] = logs["loss"] + loss
        logs["loss"].backward()
        optimizer.step()
""",
    "a wrapper that hands the epoch on": """\
from torch.utils.data import BatchSampler, DataLoader


class SkipBatchSampler(BatchSampler):
    def __init__(self, batch_sampler, skip):
        self.batch_sampler = batch_sampler
        self.skip = skip

    def __iter__(self):
        for index, batch in enumerate(self.batch_sampler):
            if index >= self.skip:
                yield batch


class Loader(DataLoader):
    def set_epoch(self, epoch):
        if hasattr(self.batch_sampler, "sampler"):
            self.batch_sampler.sampler.set_epoch(epoch)
        if hasattr(self.batch_sampler, "batch_sampler"):
            self.batch_sampler.batch_sampler.set_epoch(epoch)
""",
    "a helper that is handed everything, and all of it is loaded": """\
import torch
from project.io import save_checkpoint


def train(model, optimizer, scaler, loader, epoch):
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    save_checkpoint(model, optimizer, epoch, "last.pt", scaler=scaler.state_dict())


def main(args, model, optimizer, scaler):
    if args.restore_path:
        checkpoint = torch.load(args.restore_path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
""",
    "both names stay in the batch": """\
import torch


def train(model, optimizer, loader):
    for batch in loader:
        if "shift_labels" in batch:
            batch["labels"] = batch["shift_labels"]
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "each scheduler in the place of its optimizer": """\
import torch


def get_schedulers(config, optimizers):
    scheduler_g = torch.optim.lr_scheduler.ExponentialLR(optimizers[1], config.gamma)
    scheduler_d = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], config.gamma)
    return [scheduler_d, scheduler_g]
""",
    "DeepSpeed steps after every backward": """\
import deepspeed


def train(model, config, loader, k):
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
    for i, batch in enumerate(loader):
        engine.backward(engine(batch).mean())
        engine.step()
        if (i + 1) % k == 0:
            print("update")
""",
    "lengths divided by in one of two branches": """\
import torch


def chosen(logps, length, size, average):
    if average:
        logps = logps / length
    good, bad = logps.split(size)
    good_length, _ = length.split(size)
    if average:
        return good, bad, good
    else:
        return good, bad, good / good_length
""",
    "a validation that is followed by train()": """\
import torch


def validate(model, checks):
    model.eval()
    with torch.no_grad():
        return sum(model(x).mean().item() for x in checks)


def train(model, optimizer, loader, checks, step=0):
    model.train()
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if step % 1000 == 0 and step != 0:
            validate(model, checks)
            model.train()
        step += 1
""",
}

NEW = frozenset({code for code, _ in WRONG.values()}) - {"FL305", "FL701"}


def _serious(text: str) -> list[tuple[str, int]]:
    found = read_text(text)
    return [(f.code, f.at.line) for f in found if f.severity.value != "info"]


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found_where_no_loop_is_in_view(name: str) -> None:
    code, text = WRONG[name]
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    found = [f.at.line for f in read_text(text) if f.code == code]
    assert line in found


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_silent(name: str) -> None:
    assert [f for f in _serious(RIGHT[name]) if f[0] in NEW] == []


def test_a_loader_beside_one_that_passes_the_epoch_on(tmp_path: Path) -> None:
    (tmp_path / "shard.py").write_text(
        "from torch.utils.data import DataLoader\n\n\nclass ShardLoader(DataLoader):\n"
        "    def set_epoch(self, epoch):\n        self.sampler.set_epoch(epoch)\n"
    )
    wrapper = tmp_path / "dispatch.py"
    wrapper.write_text(
        "import torch.distributed as dist\n\n\nclass Dispatcher:\n    def __init__(self, loader):\n        self.loader = loader\n\n"
        "    def __iter__(self):\n        for batch in self.loader:\n            yield batch if dist.get_rank() == 0 else None\n"
    )
    (reading,) = read_paths([str(wrapper)], roots=[str(tmp_path)])
    assert [(f.code, f.at.line) for f in reading.findings if f.code == "FL303"] == [("FL303", 8)]


def test_a_manager_that_is_not_given_the_scheduler(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.py").write_text(
        "import torch\n\n\nclass CheckpointManager:\n    def __init__(self, model, optimizer, states):\n        self.states = states\n"
        '        self.states.update({"model": model, "optimizer": optimizer})\n'
    )
    main = tmp_path / "main.py"
    main.write_text(
        "import torch\nfrom checkpoint import CheckpointManager\n\n\ndef main(model, loader):\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)\n"
        '    checkpoint = CheckpointManager(model=model, optimizer=optimizer, states={"step": 0})\n'
        "    for x in loader:\n        model(x).mean().backward()\n        optimizer.step()\n        scheduler.step()\n        optimizer.zero_grad()\n"
    )
    readings = read_paths([str(main)], roots=[str(tmp_path)])
    found = [
        (Path(f.at.path).name, f.at.line) for r in readings for f in r.findings if f.code == "FL701"
    ]
    assert ("checkpoint.py", 7) in found


def test_a_class_that_derives_from_a_module_in_a_file_that_never_says_torch(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(
        "from torch import nn\n\n\nclass BasePolicy(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n"
    )
    manager = tmp_path / "manager.py"
    manager.write_text(
        "from base import BasePolicy\n\n\nclass Manager(BasePolicy):\n    def __init__(self, names, policies: list[BasePolicy]):\n"
        "        super().__init__()\n        self.policies = dict(zip(names, policies, strict=True))\n"
    )
    (reading,) = read_paths([str(manager)], roots=[str(tmp_path)])
    assert [(f.code, f.at.line) for f in reading.findings] == [("FL801", 7)]


def test_each_element_that_is_hidden_is_no_empty_mean() -> None:
    text = (
        "import torch\nimport torch.nn.functional as F\n\n\ndef train(pred, target):\n    known = target > 0\n"
        "    loss = torch.nan_to_num(F.mse_loss(pred[known], target[known]{}))\n    loss.mean().backward()\n"
    )
    each, mean = (
        [f.severity.value for f in read_text(text.format(how)) if f.code == "FL608"]
        for how in (', reduction="none"', "")
    )
    assert (each, mean) == (["warning"], ["info"])

"""The engine beside torch's DCP with StatefulDataLoader (what torchtitan is built of), Accelerate and Lightning: resume, other world sizes, saving.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_peers.py                   # resume and change of world size
    PYTHONPATH=src python benchmarks/engine_peers.py --save                              # and how long a save blocks; on a quiet machine
    PYTHONPATH=src python benchmarks/engine_peers.py --save --write                      # and into RESULTS.md

Each peer is used as its documentation says. A run with dropout and a shuffled loader stops in the middle of an epoch and continues in new processes:
are the weights those of the straight run, bit for bit? Then two ranks stop and one continues: which samples of the epoch come twice, and which never?
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

import accelerate
import lightning
import torch
import torch.distributed as dist
from accelerate.utils import DataLoaderConfiguration
from launch import ended, forked
from results import machine, write_section
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import fallline

SIZE, BATCH, SEED = 96, 4, 3


class Samples(Dataset[Any]):
    """Each sample says which one it is."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(8, generator=generator), torch.randn(2, generator=generator)


class Run:
    """What a loop has to keep: how many updates, and which samples it was given."""

    def __init__(self, rank: int, world: int, folder: Path, stop: int) -> None:
        self.rank, self.world, self.folder, self.stop = rank, world, folder, stop
        self.given: list[int] = []

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2))

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if self.world > 1 else model

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        ids, x, y = batch
        self.given += ids.tolist()
        return nn.functional.mse_loss(model(x), y)


def with_fallline(run: Run) -> nn.Module:
    with fallline.distributed(seed=SEED) as ranks:
        model = ranks.wrap(run.model())
        loader = ranks.loader(Samples(), batch_size=BATCH)
        stepper = fallline.Stepper(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        fallline.load_checkpoint(run.folder, stepper=stepper)
        while stepper.updates < run.stop:
            for batch in stepper.over(loader):
                with stepper.micro_batch() as micro:
                    micro.backward(run.loss(model, batch))
                if stepper.updates == run.stop:
                    break
        fallline.save_checkpoint(run.folder, stepper=stepper)
    return model


def with_dcp(run: Run) -> nn.Module:
    """torchtitan saves model, optimizer, scheduler, loader and step with DCP; no random state."""
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(SEED)
    model = run.wrapped(run.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(Samples(), run.world, run.rank, seed=SEED)
    loader = StatefulDataLoader(Samples(), batch_size=BATCH, sampler=sampler)
    step = 0
    if run.folder.exists():
        weights, states = get_state_dict(model, optimizer)
        loaded: dict[str, Any] = {"model": weights, "optimizer": states, "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id=run.folder)
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=loaded["optimizer"]
        )
        step = int(loaded["step"])
        place = run.folder.parent / f"{run.folder.name}-loader-{run.rank}.pt"
        loader.load_state_dict(torch.load(place, weights_only=False))
    while step < run.stop:
        for batch in loader:
            optimizer.zero_grad()
            run.loss(model, batch).backward()
            optimizer.step()
            step += 1
            if step == run.stop:
                break
    weights, states = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": states, "step": torch.tensor(step)}
    dcp.save(saved, checkpoint_id=run.folder)
    torch.save(loader.state_dict(), run.folder.parent / f"{run.folder.name}-loader-{run.rank}.pt")
    return model


def with_accelerate(run: Run) -> nn.Module:
    accelerate.utils.set_seed(SEED)
    options = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)
    model: Any = run.model()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        DataLoader(Samples(), batch_size=BATCH, shuffle=True),
    )
    count = run.folder.parent / f"{run.folder.name}-count.json"
    step = 0
    if run.folder.exists():
        accelerator.load_state(str(run.folder))
        step = json.loads(count.read_text())
    skip = step % len(loader)
    while step < run.stop:
        data = accelerator.skip_first_batches(loader, skip) if skip else loader
        skip = 0
        for batch in data:
            optimizer.zero_grad()
            accelerator.backward(run.loss(model, batch))
            optimizer.step()
            step += 1
            if step == run.stop:
                break
    accelerator.save_state(str(run.folder))
    count.write_text(json.dumps(step))
    return model  # type: ignore[no-any-return]


class Module(lightning.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.model = run, run.model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.run.loss(self.model, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def with_lightning(run: Run) -> nn.Module:
    lightning.seed_everything(SEED, workers=True, verbose=False)
    module = Module(run)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=run.world,
        strategy="ddp" if run.world > 1 else "auto",
        max_steps=run.stop,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    path = run.folder / "run.ckpt"
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True)
    trainer.fit(module, loader, ckpt_path=str(path) if path.exists() else None)
    trainer.save_checkpoint(path)
    return module.model


PEERS: dict[str, Callable[[Run], nn.Module]] = {
    "fallline": with_fallline,
    "torch DCP + StatefulDataLoader": with_dcp,
    "Accelerate": with_accelerate,
    "Lightning": with_lightning,
}


# -- one set of processes after the other -------------------------------------------------------------------------------


def run(names: list[str], rank: int, world: int, folder: Path) -> None:
    """`names`: which peer, under which name it keeps its checkpoint, and after how many updates it stops."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    peer, where, stop = names
    if world > 1 or peer.startswith("torch"):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
        store = folder / f"store-{where}-{stop}-{world}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    begun = Run(rank, world, folder / where, int(stop))
    model = PEERS[peer](begun)
    state = [p.detach().clone() for p in model.parameters()]
    torch.save((state, begun.given), folder / f"{where}-{stop}-{world}-{rank}.pt")


def stage(folder: Path, peer: str, where: str, stop: int, world: int) -> list[Any]:
    """Weights and samples of each rank; the words of the first that failed."""
    here: Any = sys.modules[__name__]
    names = [peer, where, str(stop)]
    if not ended([forked(here, names, rank, world, folder) for rank in range(world)]):
        log = (folder / "rank-0.log").read_text().strip().splitlines()
        raise RuntimeError(log[-1] if log else "ended without a word")
    return [torch.load(folder / f"{where}-{stop}-{world}-{r}.pt") for r in range(world)]


def resume(peer: str) -> str:
    """Ten updates straight, and five and five: weights and order of samples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ((straight, order),) = stage(folder, peer, "straight", 10, 1)
        ((_, first),) = stage(folder, peer, "stopped", 5, 1)
        ((resumed, rest),) = stage(folder, peer, "stopped", 10, 1)
    if all(map(torch.equal, straight, resumed)):
        return "the same bits"
    far = max(float((a - b).abs().max()) for a, b in zip(straight, resumed, strict=True))
    same = "the same samples" if first + rest == order else "different samples"
    return f"{same}, weights differ by {far:.0e}"


def other_world(peer: str) -> str:
    """Five updates on two ranks; then one rank, until the epoch should be over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = [i for _, given in stage(folder, peer, "stopped", 5, 2) for i in given]
        left = (SIZE - len(before)) // BATCH
        try:
            ((_, after),) = stage(folder, peer, "stopped", 5 + left, 1)
        except RuntimeError as error:
            return f"refused: {error}"[:160]
    seen = Counter(before + after)
    twice, never = sum(n > 1 for n in seen.values()), SIZE - len(seen)
    return "each sample once" if not twice and not never else f"{twice} of {SIZE} samples twice, {never} never"  # fmt: skip


# -- saving --------------------------------------------------------------------------------------------------------------


def blocked(optimizer: Any, save: Callable[[int], Any], finish: Callable[[], Any]) -> str:
    """From the call until the next step of the optimizer may begin, without a forward or backward pass in between: the median of three saves
    after the first, in milliseconds."""
    found = []
    for number in range(4):
        began = time.perf_counter()
        save(number)
        optimizer.step()  # there are no gradients: it only waits for what must not change yet
        found.append(1000 * (time.perf_counter() - began))
        finish()
    return f"{sorted(found[1:])[1]:,.0f}"


def saving() -> dict[str, str]:
    """50 M parameters with AdamW's state on this CPU: how long training waits at most."""
    import torch.distributed.checkpoint as dcp
    from engine_save import build

    model, stepper = build(50)
    (optimizer,) = stepper.optimizers
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["fallline"] = blocked(
            optimizer,
            lambda i: fallline.save_checkpoint(folder / "f", stepper=stepper, wait=False),
            fallline.wait_for_checkpoint,
        )
        dist.init_process_group("gloo", init_method=f"file://{name}/store", rank=0, world_size=1)
        futures: list[Any] = []

        def dcp_save(number: int) -> None:
            weights, states = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": states}
            futures.append(dcp.async_save(state, checkpoint_id=folder / f"d{number}"))

        found["torch DCP + StatefulDataLoader"] = blocked(
            optimizer, dcp_save, lambda: futures[-1].result()
        )
        dist.destroy_process_group()
        accelerator = accelerate.Accelerator(cpu=True)
        prepared = accelerator.prepare(model, optimizer)
        found["Accelerate"] = blocked(
            optimizer, lambda i: accelerator.save_state(str(folder / "a")), lambda: None
        )
        del prepared
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        plugin = AsyncCheckpointIO(TorchCheckpointIO())
        found["Lightning"] = blocked(
            optimizer,
            lambda i: plugin.save_checkpoint(
                {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]},
                str(folder / f"l{i}.ckpt"),
            ),
            lambda: time.sleep(8),  # it has no way to wait for one save
        )
        plugin.teardown()
    return found


NOTES = {
    "fallline": ("8e-16", "yes: bit for bit the run without those samples"),
    "torch DCP + StatefulDataLoader": (
        "its loop divides by the tokens of all ranks: as exact (ports, last row)",
        "no; torchtitan stops when the loss or norm is not finite",
    ),
    "Accelerate": ("4e-1", "no"),
    "Lightning": ("4e-1", "no"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--save", action="store_true", help="also time saves of 50 M parameters")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rows = {}
    for peer in PEERS:
        rows[peer] = resume(peer), other_world(peer)
        print(peer, rows[peer], flush=True)
    saves = saving() if options.save else {}
    versions = f"torch {torch.__version__}, accelerate {accelerate.__version__}, lightning {lightning.__version__}"
    lines = [
        f"`python benchmarks/engine_peers.py --save`, {machine()}, {versions}",
        "",
        "| | distance from the big batch, with a remainder (engine on a CPU) | resume in mid-epoch, with dropout | two ranks, then one, in mid-epoch | save of 50 M parameters with AdamW's state blocks for, ms | goes back after a spike |",
        "|---|---|---|---|---|---|",
    ]
    for peer, (resumed, moved) in rows.items():
        exact, rewind = NOTES[peer]
        lines.append(
            f"| {peer} | {exact} | {resumed} | {moved} | {saves.get(peer, '–')} | {rewind} |"
        )
    lines += [
        "",
        "torchtitan itself was not run: it needs packages that are not on this machine. The row is made of the parts that it saves with; its own loader refuses a "
        "different number of data-parallel ranks, and no random state is saved (a TODO in its DCP checkpointer). Accelerate has no "
        "asynchronous save, so its number is that of the whole save; Lightning's is that of `AsyncCheckpointIO`, which copies before it returns. fallline copies in a thread while the next forward and backward passes run; here none does, so this is the "
        "longest that a step can wait for the copy.",
    ]
    print("\n".join(lines))
    if options.write:
        write_section("the engine beside its peers", "\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

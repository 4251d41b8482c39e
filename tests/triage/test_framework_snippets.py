"""The snippets that need a framework or several ranks, executed with the real thing: what they promise holds after them.

Together with test_claims.py and test_playbook_code.py every snippet of an answer runs somewhere. Two need a CUDA device and run
under `make test-gpu` (`gpu:` in claims, `NEED_A_GPU`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.triage import behaviours
from tests.triage.test_claims import norm_of
from tests.triage.test_playbook_code import ELSEWHERE, Net, world

from fallline.triage.claim import claims
from fallline.triage.playbook import playbooks

pytestmark = pytest.mark.long  # Lightning, Accelerate and transformers take seconds to import

FIXES = {f.title: f.code for b in playbooks() for c in b.cases for f in c.fix if f.code}
LIGHTNING = {c.id: a.code for c in claims() for a in c.actions if "lightning" in a.proof}


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_nothing_is_left_out() -> None:
    here = {
        "Use the framework's own option",
        "Set the framework's option and remove the manual clip",
    }
    here |= {"Clip with the Accelerator, on the last micro-batch", "Clip with Fabric"}
    here |= {"Set max_grad_norm", "Resize the embeddings after adding tokens"}
    here |= {"DDP under torchrun", "Shard with fully_shard", "Share by file, not by descriptor"}
    assert here == set(ELSEWHERE)
    assert set(LIGHTNING) == {"lightning-manual", "lightning-clip"}


def _trained(code: str, **given: Any) -> float:
    """A module is trained by the Trainer that the code makes; the largest norm that reached a step."""
    import lightning

    seen: list[float] = []

    class Observed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            loss = closure()  # forward, backward and Lightning's clip
            grads = [p.grad for p in self.param_groups[0]["params"]]
            seen.append(float(torch.nn.utils.get_total_norm(grads)))
            super().step()
            return loss

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return 1000 * self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return Observed(self.parameters(), lr=1e-6)

    class Quiet(lightning.Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options)  # fmt: skip

    class Renamed:
        Trainer = Quiet

    names = {"lightning": Renamed, **given}
    exec(code, names)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    names["trainer"].fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
    return max(seen)


def test_lightning_clips_where_its_option_says() -> None:
    titles = ("Use the framework's own option", "Set the framework's option and remove the manual clip")  # fmt: skip
    for code in (LIGHTNING["lightning-clip"], *(FIXES[t] for t in titles)):
        assert 0.0 < _trained(code) <= 1.001, code


def test_lightning_by_hand() -> None:
    import lightning

    norms: list[float] = []
    body = compile(LIGHTNING["lightning-manual"], "lightning-manual", "exec")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss, opt = 1000 * self.layer(batch[0]).pow(2).mean(), self.optimizers()
            step = opt.step
            opt.step = lambda: (norms.append(norm_of(self)), step())  # type: ignore[method-assign,union-attr,assignment]
            exec(body, {"self": self, "loss": loss, "opt": opt, "batch_idx": batch_idx})
            opt.step = step  # type: ignore[method-assign,union-attr]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
    assert len(norms) == 2 and max(norms) <= 1.001


def _loop_of(code: str, **given: Any) -> float:
    names = {**world(), **given}
    model = names["model"]
    names["loss"] = 1000 * model(names["inputs"]).pow(2).mean()
    norms: list[float] = []
    step = names["optimizer"].step
    names["optimizer"].step = lambda *a, **k: (norms.append(norm_of(model)), step(*a, **k))
    exec(code, names)
    return norms[0]


def test_accelerate_and_fabric_clip() -> None:
    from accelerate import Accelerator
    from lightning.fabric import Fabric

    accelerate = FIXES["Clip with the Accelerator, on the last micro-batch"]
    assert 0.0 < _loop_of(accelerate, accelerator=Accelerator(cpu=True)) <= 1.001
    fabric = Fabric(accelerator="cpu")
    names = world()
    model, optimizer = fabric.setup(names["model"], names["optimizer"])
    norm = _loop_of(FIXES["Clip with Fabric"], fabric=fabric, model=model, optimizer=optimizer)
    assert 0.0 < norm <= 1.001


def test_transformers() -> None:
    import transformers

    names: dict[str, Any] = {"transformers": transformers}
    exec(FIXES["Set max_grad_norm"], names)
    assert names["arguments"].max_grad_norm == 1.0
    config = transformers.GPT2Config(vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    names = {"model": transformers.GPT2LMHeadModel(config), "tokenizer": range(9)}
    exec(FIXES["Resize the embeddings after adding tokens"], names)
    assert names["model"].get_input_embeddings().weight.shape[0] == 9


def test_ranks() -> None:
    def body() -> None:
        code = FIXES["DDP under torchrun"].replace('init_process_group("nccl")', "is_initialized()")
        code = code.replace('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', "pass")
        names = world()
        exec(code.replace("model.cuda()", "model"), names)
        assert type(names["model"]).__name__ == "DistributedDataParallel"
        assert names["loader"].sampler is names["sampler"] and names["sampler"].epoch == 0
        model = Net()
        model.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        names = {**world(), "model": model}
        exec(FIXES["Shard with fully_shard"], names)
        assert all(type(p).__name__ == "DTensor" for p in names["model"].parameters())

    behaviours._alone(body)


def test_files_are_shared_by_name() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    try:
        exec(FIXES["Share by file, not by descriptor"], {"torch": torch})
        assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    finally:
        torch.multiprocessing.set_sharing_strategy(before)

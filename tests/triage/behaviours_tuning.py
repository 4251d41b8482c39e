"""What PEFT, TRL, Transformers, Lightning and reinforcement learning do, as claims say it (claims/lora.md, preferences.md, agents.md, trainer.md). Each function fails if it is not so."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from tests.triage.provoke import _QUIET, _lightning
from tests.triage.provoke_frameworks import _gpt
from torch import nn
from torch.utils.data import DataLoader

IDS = torch.arange(6).unsqueeze(0)


def _adapted(base: Any = None, **given: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, **given)
    return get_peft_model(base or _gpt(), config)


# --- PEFT ----------------------------------------------------------------------------------------------------------------------------
def an_adapter_file_holds_only_the_adapter() -> None:
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        _adapted().save_pretrained(folder)
        names = load_file(Path(folder) / "adapter_model.safetensors")
        assert {p.name for p in Path(folder).iterdir()} >= {"adapter_config.json"}
    assert names and all("lora_" in name for name in names)


def merging_changes_nothing_in_the_output() -> None:
    model = _adapted().eval()
    with torch.no_grad():
        before = model(IDS).logits
        merged = model.merge_and_unload()
        assert torch.allclose(merged(IDS).logits, before, atol=1e-4)
    assert not any("lora" in name for name in merged.state_dict())


def adapters_can_be_switched() -> None:
    from peft import LoraConfig

    model = _adapted().eval()
    model.add_adapter("b", LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False))
    with torch.no_grad():
        first = model(IDS).logits
        model.set_adapter("b")
        second = model(IDS).logits
        with model.disable_adapter():
            bare = model(IDS).logits
        model.merge_adapter()
        model.unmerge_adapter()
        assert torch.allclose(model(IDS).logits, second, atol=1e-4)
        assert torch.allclose(model.unload()(IDS).logits, bare, atol=1e-5)
    assert not torch.allclose(first, second) and not torch.allclose(second, bare)


def modules_to_save_are_saved() -> None:
    from peft import get_peft_model_state_dict

    plain = get_peft_model_state_dict(_adapted())
    named = get_peft_model_state_dict(_adapted(modules_to_save=["ln_f"]))
    assert not any("ln_f" in name for name in plain) and any("ln_f" in name for name in named)


def a_loaded_adapter_is_frozen() -> None:
    from peft import PeftModel

    with TemporaryDirectory() as folder:
        _adapted().save_pretrained(folder)
        for trainable in (False, True):
            model = PeftModel.from_pretrained(_gpt(), folder, is_trainable=trainable)
            assert any(p.requires_grad for p in model.parameters()) == trainable


# --- TRL -----------------------------------------------------------------------------------------------------------------------------
def packing_fills_and_keeps_labels() -> None:
    from datasets import Dataset
    from trl import pack_dataset

    rows = Dataset.from_dict(
        {"input_ids": [[1, 2], [3, 4, 5]], "labels": [[-100, 2], [-100, 4, 5]]}
    )
    packed = pack_dataset(rows, seq_length=8)
    assert len(packed) == 1
    ids, labels = packed[0]["input_ids"], packed[0]["labels"]
    assert sorted(ids) == [1, 2, 3, 4, 5] and labels.count(-100) == 2
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))


def dpo_moves_only_the_margin() -> None:
    chosen, rejected = (
        torch.tensor(-5.0, requires_grad=True),
        torch.tensor(-6.0, requires_grad=True),
    )
    F.logsigmoid(0.1 * (chosen - rejected)).neg().backward()
    assert chosen.grad is not None and rejected.grad is not None
    assert chosen.grad == -rejected.grad
    both_lower = -F.logsigmoid(torch.tensor(0.1 * (-9.0 + 12.0)))
    assert both_lower < -F.logsigmoid(torch.tensor(0.1))  # better, with a less likely answer


# --- rewards -------------------------------------------------------------------------------------------------------------------------
def a_bootstrapped_target_has_no_gradient() -> None:
    net, x = nn.Linear(2, 2), torch.randn(4, 2)
    value = net(x).max(1).values
    moving = F.mse_loss(value, 1 + 0.9 * net(x).max(1).values)
    fixed = F.mse_loss(value, 1 + 0.9 * net(x).max(1).values.detach())
    one, two = (torch.autograd.grad(v, net.weight, retain_graph=True)[0] for v in (moving, fixed))
    assert not torch.allclose(one, two)


def the_policy_gradient_needs_its_sign() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    chance = torch.distributions.Categorical(logits=logits)
    (-chance.log_prob(torch.tensor([0])) * 2.0).mean().backward()
    assert logits.grad is not None
    assert (logits - 0.1 * logits.grad).softmax(-1)[0, 0] > 0.5  # the good action is likelier


# --- Transformers' Trainer -----------------------------------------------------------------------------------------------------------
class _Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        logits = self.out(x)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


def _arguments(folder: str, **given: Any) -> Any:
    from transformers import TrainingArguments

    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "max_steps": 1}
    return TrainingArguments(output_dir=folder, **quiet, **given)


def the_trainer_calls_compute_loss() -> None:
    from transformers import Trainer

    seen: list[Any] = []

    def own(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        seen.append(num_items_in_batch)
        total = F.cross_entropy(outputs["logits"], labels, reduction="sum")
        return total / num_items_in_batch

    rows: Any = [{"x": torch.ones(1), "labels": 0}] * 4
    with TemporaryDirectory() as folder:
        arguments = _arguments(folder, gradient_accumulation_steps=2, per_device_train_batch_size=2)
        Trainer(_Scorer(), arguments, train_dataset=rows, compute_loss_func=own).train()
    assert [int(n) for n in seen] == [4, 4]  # of the whole update


def the_trainer_needs_labels_for_a_loss() -> None:
    from transformers import Trainer

    with TemporaryDirectory() as folder:
        for name, found in (("labels", True), ("target", False)):
            rows: Any = [{"x": torch.ones(1), name: 0}] * 4
            arguments = _arguments(folder)
            logged = Trainer(_Scorer(), arguments, eval_dataset=rows).evaluate()
            assert ("eval_loss" in logged) == found


# --- Lightning -----------------------------------------------------------------------------------------------------------------------
def lightning_counts_optimizer_steps() -> None:
    lightning, Module = _lightning()

    class Two(Module):  # type: ignore[misc,valid-type]
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

        def training_step(self, batch: Any, index: int) -> None:
            for optimizer in self.optimizers():
                optimizer.step()

    trainer = lightning.Trainer(max_epochs=1, limit_train_batches=3, **_QUIET)
    trainer.fit(Two(), DataLoader(torch.ones(8, 2)))
    assert trainer.global_step == 6


def lightning_checks_validation_first() -> None:
    lightning, Module = _lightning()
    seen: list[str] = []

    class Checked(Module):  # type: ignore[misc,valid-type]
        def validation_step(self, batch: Any, index: int) -> None:
            seen.append("sanity" if self.trainer.sanity_checking else "validation")

        def on_train_batch_start(self, *_: Any) -> None:
            seen.append("training")

    trainer = lightning.Trainer(max_epochs=1, limit_train_batches=1, **_QUIET)
    trainer.fit(Checked(), DataLoader(torch.ones(8, 2)), DataLoader(torch.ones(8, 2)))
    assert seen[:3] == ["sanity", "sanity", "training"]


def lightning_needs_its_arguments() -> None:
    lightning, Module = _lightning()

    class Sized(Module):  # type: ignore[misc,valid-type]
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

    trainer = lightning.Trainer(max_steps=1, **_QUIET)
    trainer.fit(Sized(3), DataLoader(torch.ones(8, 2)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        trainer.save_checkpoint(path)
        try:
            Sized.load_from_checkpoint(path)
        except TypeError as error:
            assert "size" in str(error)
        else:
            raise AssertionError
        assert Sized.load_from_checkpoint(path, size=3).size == 3


def kl_and_soft_cross_entropy_agree() -> None:
    teacher = torch.randn(4, 5).softmax(-1)
    logits = torch.randn(4, 5, requires_grad=True)
    soft = F.cross_entropy(logits, teacher)
    kl = F.kl_div(logits.log_softmax(-1), teacher, reduction="batchmean")
    one, two = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (soft, kl))
    assert torch.allclose(one, two, atol=1e-6) and soft > kl

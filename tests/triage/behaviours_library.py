"""What datasets, torchmetrics and PEFT do, as claims/data-library.md, confidence.md and adapters.md say it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.triage.behaviours_tuning import IDS
from tests.triage.provoke_frameworks import _gpt
from torch import nn
from torch.utils.data import DataLoader


def datasets_fetch_in_batches() -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"x": [[1.0, 2.0]] * 4}).with_format("torch")
    assert hasattr(rows, "__getitems__") and rows[[0, 1]]["x"].shape == (2, 2)


def datasets_map_is_cached_by_content() -> None:
    from datasets.fingerprint import Hasher

    def twice(factor: int) -> Any:
        return lambda row: {"y": row["x"] * factor}

    assert Hasher.hash(twice(2)) == Hasher.hash(twice(2)) != Hasher.hash(twice(3))


def collated_lists_are_transposed() -> None:
    rows: Any = [{"ids": [1, 2, 3]}, {"ids": [4, 5, 6]}]
    batch = next(iter(DataLoader(rows, batch_size=2)))
    assert isinstance(batch["ids"], list) and batch["ids"][0].tolist() == [1, 4]


def torchmetrics_takes_logits() -> None:
    from torchmetrics import Accuracy
    from torchmetrics.classification import MulticlassAccuracy

    logits, labels = torch.randn(50, 3), torch.randint(0, 3, (50,))
    plain = (logits.argmax(1) == labels).float().mean()
    assert torch.allclose(Accuracy(task="multiclass", num_classes=3)(logits, labels), plain)
    assert MulticlassAccuracy(3).average == "macro"
    binary = Accuracy(task="binary")
    scores, truth = torch.tensor([3.0, -2.0, 0.2]), torch.tensor([1, 0, 1])
    assert binary(scores, truth) == 1  # outside of 0..1, so a sigmoid comes first


def argmax_of_logits_is_not_generation() -> None:
    torch.manual_seed(1)
    model, prompt = _gpt().eval(), torch.tensor([[3, 7]])
    written = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    forced = torch.tensor(
        [[3, 7, 11, 2, 5, 17, 9, 1]]
    )  # the true text, which the model does not write
    guesses = model(forced).logits.argmax(-1)[:, 1:-1]
    assert not torch.equal(guesses, written[:, 2:])
    again = model(written).logits.argmax(-1)[:, 1:-1]
    assert torch.equal(again, written[:, 2:])  # only on its own text are they the same


# --- adapters ------------------------------------------------------------------------------------------------------------------------
def merging_in_bf16_rounds() -> None:
    base, change = torch.randn(64, 64).bfloat16(), 1e-3 * torch.randn(64, 64)
    merged = (base.float() + change).bfloat16()
    lost = ((merged - base).float() - change).norm() / change.norm()
    exact = ((base.float() + change) - base.float() - change).norm() / change.norm()
    assert lost > 0.5 and exact < 1e-2


def a_fresh_adapter_changes_nothing() -> None:
    from peft import LoraConfig, get_peft_model

    base = _gpt().eval()
    before = base(IDS).logits
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"])).eval()
    assert torch.allclose(model(IDS).logits, before, atol=1e-5)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    assert names and all("lora_" in name for name in names)


def preparing_for_kbit_freezes_and_upcasts() -> None:
    from peft import prepare_model_for_kbit_training

    model = _gpt().bfloat16()
    prepared = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    assert not any(p.requires_grad for p in prepared.parameters())
    quantised = _gpt().bfloat16()
    quantised.is_loaded_in_4bit = True
    prepare_model_for_kbit_training(quantised, use_gradient_checkpointing=False)
    assert {p.dtype for p in quantised.parameters()} == {torch.float32}


def resized_embeddings_keep_their_rows() -> None:
    model = _gpt()
    before = model.get_input_embeddings().weight.clone()
    model.resize_token_embeddings(24, mean_resizing=False)
    after = model.get_input_embeddings().weight
    assert after.shape[0] == 24 and torch.equal(after[:20], before)
    assert model.lm_head.weight is after  # tied


# --- freezing ------------------------------------------------------------------------------------------------------------------------
def frozen_features_can_be_cached() -> None:
    backbone, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    cached = backbone(x)
    one = torch.autograd.grad(F.cross_entropy(head(backbone(x)), y), head.weight)[0]
    two = torch.autograd.grad(F.cross_entropy(head(cached), y), head.weight)[0]
    assert torch.equal(one, two)


def a_low_rate_keeps_pretrained_weights() -> None:
    start = nn.Linear(8, 8)
    moved = []
    for rate in (1e-5, 1e-2):
        net = nn.Linear(8, 8)
        net.load_state_dict(start.state_dict())
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        for _ in range(50):
            optimizer.zero_grad()
            net(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()
        moved.append((net.weight - start.weight).norm() / start.weight.norm())
    assert moved[0] < 0.01 < 0.3 < moved[1]


def replacing_a_layer_replaces_its_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net[1] = nn.Linear(4, 3)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert not any(id(p) in held for p in net[1].parameters())

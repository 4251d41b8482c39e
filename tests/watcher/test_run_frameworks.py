"""Frameworks: healthy runs yield nothing, and a NaN inside one is still found at the user's line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once, said_by_fallline

LIT = """\
import torch, lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import logging, warnings; warnings.filterwarnings("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(0)
class M(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, i):
        x, y = batch
        self.log("v", nn.functional.mse_loss(self.net(x), y))
    def configure_optimizers(self):
        o = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": o, "lr_scheduler": torch.optim.lr_scheduler.StepLR(o, 1)}
data = TensorDataset(torch.randn(48, 8), torch.randn(48, 1))
m = M()
t = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2, gradient_clip_val=1.0)
t.fit(m, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8))
print(float(sum(p.sum() for p in m.parameters())))
"""

LIT_NAN = """\
import torch, lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import logging, warnings; warnings.filterwarnings("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(0)
class M(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    def training_step(self, batch, i):
        x, y = batch
        p = self.net(x)
        if i == 3:
            p = p * 0
        loss = torch.log(p.abs()).mean()  # HERE
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, i):
        x, y = batch
        self.log("v", nn.functional.mse_loss(self.net(x), y))
    def configure_optimizers(self):
        o = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": o, "lr_scheduler": torch.optim.lr_scheduler.StepLR(o, 1)}
data = TensorDataset(torch.randn(48, 8), torch.randn(48, 1))
m = M()
t = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2, gradient_clip_val=1.0)
t.fit(m, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8))
print(float(sum(p.sum() for p in m.parameters())))
"""

ACC = """\
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 8), torch.randn(48, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.StepLR(optimizer, 4)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader, sched = accelerator.prepare(model, optimizer, loader, sched)
for epoch in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
print(float(sum(p.sum() for p in model.parameters())))
"""

FAB = """\
import torch
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
fabric = L.Fabric(accelerator="cpu", devices=1)
fabric.launch()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
model, opt = fabric.setup(model, opt)
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(48, 8), torch.randn(48, 1)), batch_size=4, shuffle=True))
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        accumulating = i % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss / 2)
        if not accumulating:
            fabric.clip_gradients(model, opt, max_norm=1.0)
            opt.step()
            opt.zero_grad()
print(float(sum(p.sum() for p in model.parameters())))
"""

# Bert's own loss is a mean that ignores num_items_in_batch, which the Trainer hands it and relies on: two micro-batches of
# it make twice the update (measured in tests/integrations/test_transformers.py), so accumulation has to say who divides.
HF = """\
import torch, os
os.environ["TOKENIZERS_PARALLELISM"]="false"
from transformers import Trainer, TrainingArguments, BertConfig, BertForSequenceClassification
torch.set_num_threads(1)
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16))
data = [{"input_ids": torch.randint(0, 50, (8,)), "attention_mask": torch.ones(8, dtype=torch.long), "labels": int(i % 2)} for i in range(32)]
args = TrainingArguments("hfout", num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[], disable_tqdm=True, save_strategy="no", logging_steps=100, use_cpu=True)
t = Trainer(model=model, args=args, train_dataset=data)
t.loss_is_scaled_for_ga = False
t.train()
print(float(sum(p.sum() for p in model.parameters())))
"""

SCRIPTS = {
    "lightning": (LIT, "lightning"),
    "lightning_nan": (LIT_NAN, "lightning"),
    "accelerate": (ACC, "accelerate"),
    "fabric": (FAB, "lightning"),
    "trainer": (HF, "transformers"),
}
HERE = {n: s for n, (s, package) in SCRIPTS.items() if importlib.util.find_spec(package)}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HERE, reason="no framework is installed")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = {f"train_{name}": script for name, script in HERE.items()}
    return run_once(tmp_path_factory, "frameworks", scripts)


def findings(runs: Path, name: str) -> list[tuple[str, int, str]]:
    found = json.loads((runs / f"train_{name}.run" / "findings.json").read_text())
    return [
        (f["code"], f["line"], f["evidence"].get("op")) for f in found if f["severity"] != "info"
    ]


@pytest.mark.parametrize("name", [n for n in HERE if n != "lightning_nan"])
def test_a_healthy_run_of_a_framework_yields_nothing(runs: Path, name: str) -> None:
    output = (runs / f"train_{name}.watched").read_text()
    assert (runs / f"train_{name}.watched-status").read_text() == "0", output
    assert findings(runs, name) == [], output
    assert said_by_fallline(output) == []


@pytest.mark.parametrize("name", [n for n in HERE if n == "lightning_nan"])
def test_a_nan_in_a_training_step_is_found_at_its_line(runs: Path, name: str) -> None:
    line = next(n for n, text in enumerate(HERE[name].split("\n"), 1) if "# HERE" in text)
    assert findings(runs, name) == [("FL620", line, "log")]

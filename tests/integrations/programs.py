"""One training program for each framework and case. `# HERE` is the line that a finding must name."""

from __future__ import annotations

__all__ = ["CASES", "EXPECTED", "EXTRAS", "FRAMEWORKS", "RANKS", "line_of", "program"]

FRAMEWORKS = ("lightning", "pytorch_lightning", "fabric", "transformers", "accelerate")
CASES = ("healthy", "nan", "unscaled", "desync")
EXPECTED = {"healthy": [], "nan": ["FL620"], "unscaled": ["FL104"], "desync": ["FL320"]}
RANKS = {"desync": 2, "folder": 2}

HEAD = """\
import os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
RANK = int(os.environ.get("RANK", 0))
x = torch.randn(96, 8)
y = x[:, :1] * 2 + 1
{bad}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        {desync}
        out = self.layers(x)
        {nan}
        return out if labels is None else {{"loss": nn.functional.mse_loss(out, labels), "out": out}}


"""
# One sample of the fourth update, whose logarithm does not exist.
NAN = "out = out + torch.log(x[:, :1].abs())  # HERE"
# A rank that changes its weights alone: what lazy initialisation with a seed of its own does.
DESYNC = "self.layers[0].bias.data.add_(0.1 * RANK if self.calls == 4 else 0.0)"

LIGHTNING = """\
import logging, warnings
import {package} as L
from fallline.integrations.lightning import FalllineCallback

warnings.filterwarnings("ignore")
logging.getLogger("{package}").setLevel(logging.ERROR)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.automatic_optimization = {automatic}

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            self.manual_backward(loss){here}
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


module = Module()
watching = FalllineCallback(out="run")
trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices={ranks}, strategy="{strategy}", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, {clip}callbacks=[watching])
trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=8))
model = module
"""

FABRIC = """\
import lightning as L
from fallline.integrations.fabric import FalllineCallback

watching = FalllineCallback(out="run")
fabric = L.Fabric(accelerator="cpu", devices={ranks}, strategy="{strategy}", callbacks=[watching])
fabric.launch()
model = Net()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), batch_size=8))
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        accumulating = (i + 1) % 2 != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = nn.functional.mse_loss(model(a), b)
            fabric.backward(loss{divide}){here}
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=10.0, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
fabric.call("on_train_end")
"""

TRANSFORMERS = """\
from transformers import Trainer, TrainingArguments
from fallline.integrations.transformers import FalllineCallback

model = Net()
data = [dict(x=a, labels=b) for a, b in zip(x, y)]


def mean_loss(outputs, labels, num_items_in_batch=None):
    return nn.functional.mse_loss(outputs, labels)


args = TrainingArguments("hf", num_train_epochs=2, per_device_train_batch_size=8, gradient_accumulation_steps=2, report_to=[], optim="sgd",
                         learning_rate=0.05, disable_tqdm=True, save_strategy="no", logging_steps=4, use_cpu=True, label_names=["labels"],
                         remove_unused_columns=False)
watching = FalllineCallback(out="run")
trainer = Trainer(model=model, args=args, train_dataset=data, compute_loss_func={loss}, callbacks=[watching])
trainer.train(){here}
print("LOGGED", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
"""

ACCELERATE = """\
from accelerate import Accelerator
from fallline.integrations.accelerate import watched

accelerator = watched(Accelerator(cpu=True, gradient_accumulation_steps={steps}), out="run")
model = Net()
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        {loop}
accelerator.end_training()
watching = accelerator.watching
"""
ACCUMULATE = """\
with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(a), b))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()"""
BY_HAND = """\
accelerator.backward(nn.functional.mse_loss(model(a), b))  # HERE
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()"""

# The events from one step to the next, as the watcher saw them.
TAIL = """
seen = [e for e in watching._watch._session.log.events if e.kind in ("zero_grad", "backward", "clip", "step")]
steps = [i for i, e in enumerate(seen) if e.kind == "step"]
print("EVENTS", [e.kind for e in seen[steps[1] + 1 : steps[2] + 1]])
print("DIVIDED", sorted({e.normalised or e.divisor for e in seen if e.kind == "backward"}, key=str))
print("FINITE", all(bool(p.isfinite().all()) for p in model.parameters()))
"""


def program(framework: str, case: str) -> str:
    """The script."""
    head = HEAD.format(
        bad="x[50, 0] = 0.0\n" if case == "nan" else "",
        nan=NAN if case == "nan" else "pass",
        desync=DESYNC if case == "desync" else "pass",
    )
    unscaled = case == "unscaled"
    ranks = RANKS.get(case, 1)
    common = {
        "ranks": ranks,
        "strategy": "ddp" if ranks > 1 else "auto",
        "here": "  # HERE" if unscaled else "",
    }
    if framework in ("lightning", "pytorch_lightning"):
        clip = "" if unscaled else "accumulate_grad_batches=2, gradient_clip_val=10.0, "
        body = LIGHTNING.format(package=framework, automatic=not unscaled, clip=clip, **common)
    elif framework == "fabric":
        body = FABRIC.format(divide="" if unscaled else " / 2", **common)
    elif framework == "transformers":
        body = TRANSFORMERS.format(loss="mean_loss" if unscaled else None, **common)
    else:
        loop = BY_HAND if unscaled else ACCUMULATE
        body = ACCELERATE.format(steps=1 if unscaled else 2, loop=loop)
    return head + body + TAIL


def line_of(script: str) -> int | None:
    lines = script.split("\n")
    return next((n for n, text in enumerate(lines, 1) if "# HERE" in text), None)


def _raising(framework: str) -> str:
    """The program whose training raises after a few updates."""
    script = program(framework, "healthy")
    return script.replace(
        "        out = self.layers(x)",
        "        out = self.layers(x if self.calls < 10 else x[:, :3])",
    )


# What the table does not show; the folder's name is `extra-NAME`.
EXTRAS = {
    "lightning_raises": _raising("lightning"),
    "transformers_raises": _raising("transformers"),
    "lightning_stops": program("lightning", "nan").replace('out="run"', 'out="run", guard="stop"'),
    # the ranks of one launch start in different seconds and still share a folder that nobody has named
    "folder": "import os, time\ntime.sleep(1.5 * int(os.environ['RANK']))\n"
    + program("fabric", "desync").replace('FalllineCallback(out="run")', "FalllineCallback()"),
    # all three divide by themselves
    "accelerate_twice": program("accelerate", "healthy").replace(
        "accelerator.backward(nn.functional.mse_loss(model(a), b))",
        "accelerator.backward(nn.functional.mse_loss(model(a), b) / 2)  # HERE",
    ),
    "lightning_twice": program("lightning", "healthy")
    .replace("mse_loss(self.net(batch[0]), batch[1])", "mse_loss(self.net(batch[0]), batch[1]) / 2")
    .replace("trainer.fit(", "trainer.fit(  # HERE\n    "),
    "transformers_twice": program("transformers", "healthy")
    .replace(
        '{"loss": nn.functional.mse_loss(out, labels)',
        '{"loss": nn.functional.mse_loss(out, labels) / 2',
    )
    .replace("trainer.train()", "trainer.train()  # HERE"),
    # a weight, and a term with one, are not the number of micro-batches
    "accelerate_weighted": program("accelerate", "healthy").replace(
        "nn.functional.mse_loss(model(a), b)",
        "0.1 * (nn.functional.mse_loss(model(a), b) + 0.5 * model(a).abs().mean())",
    ),
    "lightning_weighted": program("lightning", "healthy").replace(
        "mse_loss(self.net(batch[0]), batch[1])", "mse_loss(self.net(batch[0]), batch[1]) * 0.1"
    ),
}

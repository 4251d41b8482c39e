"""FL808: the last batch of an epoch has one sample, and BatchNorm is in train mode."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Batch, Forward, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["BatchnormBatchOfOne"]


class BatchnormBatchOfOne(Rule):
    code = "FL808"
    name = "batchnorm-batch-of-one"
    severity = Severity.WARNING
    what = "A model with BatchNorm is trained on a loader whose last batch has a single sample."
    why = (
        "BatchNorm normalises with the mean and variance of the batch. For one sample, a layer without spatial size has no variance, and torch stops the "
        "run with `Expected more than 1 value per channel`. A layer with spatial size continues, but normalises that one image by its own statistics and moves "
        "the running statistics towards it, once per epoch and always at its end."
    )
    instead = "Drop the last batch while training: `DataLoader(..., drop_last=True)`. Keep it in evaluation, where nothing depends on the batch."
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html",
        "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    )
    tokens = (b"BatchNorm", b"batchnorm")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """A loader that keeps what is left over, in a file that trains a model with BatchNorm1d over features."""
        text = module.source.text
        if "BatchNorm1d(" not in text or "Conv1d(" in text or ".backward(" not in text:
            return
        for call in module.calls("torch.utils.data.DataLoader"):
            told = {k.arg for k in call.keywords}
            if told & {None, "drop_last", "sampler", "batch_sampler", "collate_fn"}:
                continue
            size = module.argument(call, 1, "batch_size")
            shuffled = module.argument(call, 2, "shuffle")
            if size is not None and module.number(size) != 1 and shuffled is not None:
                if module.constant(shuffled) is True:
                    yield self.finding(
                        module.location(call),
                        "If one sample is left over for the last batch, BatchNorm1d refuses it in train mode. Pass `drop_last=True` to the DataLoader of the training data",
                        severity=Severity.INFO,
                    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        given: Batch | None = None
        seen: set[str] = set()
        for event in trace.of(Batch, Forward):
            match event:
                case Batch():
                    given = event
                case Forward() if (
                    given is not None and event.may_train and event.training is not False
                ):
                    loader, model = trace.loader(given.loader), trace.model(event.model)
                    if loader is None or model is None or loader.id in seen:
                        continue
                    if loader.leftover == 1 and model.batchnorm and event.used:
                        seen.add(loader.id)
                        yield self.finding(
                            given,
                            "The last batch of this loader has one sample, and the model has BatchNorm in train mode: its statistics are those of a single "
                            "sample, or the run stops with an error. Pass `drop_last=True` to the DataLoader",
                            related={"forward": event.at},
                        )

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(33, 1, 8, 8), torch.randint(0, 2, (33,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(2):
    for images, labels in loader:  # FL808
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(33, 1, 8, 8), torch.randint(0, 2, (33,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
check = torch.utils.data.DataLoader(data, batch_size=16)
for epoch in range(2):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum((model(images).argmax(1) == labels).sum() for images, labels in check))
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(33, 8), torch.randint(0, 2, (33,)))
for inputs, labels in torch.utils.data.DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
""",
    )

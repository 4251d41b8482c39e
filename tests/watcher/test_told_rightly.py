"""What people see of runs that went wrong in an ordinary way: the right finding, on the line that made it."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from fallline.report.run import summary  # noqa: E402
from fallline.runs.overview import measured  # noqa: E402
from fallline.show.numbers import number  # noqa: E402
from fallline.watcher.loss import facts_of  # noqa: E402
from watcher.matrix.drive import Watched, watched  # noqa: E402


class Rows(Dataset[Any]):
    """Samples, one of which is broken; reading one may take a while."""

    def __init__(self, count: int, broken: int | None = None, seconds: float = 0.0) -> None:
        self.x = torch.randn(count, 8)
        self.y = 3 * self.x[:, :1] + 0.3 * torch.randn(count, 1)
        if broken is not None:
            self.y[broken] = 4000.0
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.x[index], self.y[index]


def fit(loader: Any, epochs: int = 1, lr: float = 0.02) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def one(seen: Watched, code: str) -> Any:
    assert seen.failure is None
    (found,) = [f for f in seen.findings if f.code == code]
    return found


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip() == text)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_spike_names_the_sample_that_made_it(workers: int) -> None:
    def train() -> None:
        fit(DataLoader(Rows(640, broken=411), batch_size=8, num_workers=workers), epochs=2)

    spike = one(watched(train), "FL624")
    assert "Sample 411 (position 3 of the batch) makes 100% of it" in spike.message
    assert "its target reaches 4000" in spike.message
    assert spike.evidence["indices"] == list(range(408, 416))
    assert spike.evidence["causes"][0]["cause"] == "sample"
    assert spike.evidence["samples"][0]["index"] == 411


def test_a_spike_that_no_sample_made_names_what_changed_before() -> None:
    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for update in range(120):
            optimizer.param_groups[0]["lr"] = 12.0 if update == 60 else 0.1
            x = torch.randn(64, 8)
            loss = F.mse_loss(model(x), 3 * x[:, :1] + torch.randn(64, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    spike = one(watched(train), "FL624")
    first, *others = spike.evidence["causes"]
    assert first["cause"] == "learning-rate" and "rose from 0.1 to 12 at update 60" in spike.message
    assert "weights" in [cause["cause"] for cause in others]
    assert spike.evidence["fingerprint"].startswith("64x8 float32 ")


def test_waiting_for_data_points_at_the_loop_and_knows_the_workers() -> None:
    def train() -> None:
        fit(DataLoader(Rows(130, seconds=0.004), batch_size=2))

    seen = watched(train)
    found = one(seen, "FL520")
    assert found.at.line == line_of("for x, y in loader:")
    assert "set `num_workers`" in found.message and found.evidence["workers"] == 0
    typical = seen.run.tracks[0].typical()
    assert found.evidence["share"] == pytest.approx(typical["data"] / sum(typical.values()))


def test_the_parts_of_an_update_add_up_to_the_time_between_updates() -> None:
    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            loss = model(torch.randn(4, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)

    rows = watched(train).run.tracks[0].rows
    for before, row in pairwise(rows[1:]):
        assert sum(row.seconds.values()) == pytest.approx(row.time - before.time, abs=5e-3)
        assert row.seconds["other"] > 0.009, "what the loop does besides has a name"


def broken_input() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for update in range(12):
        x = torch.randn(64, 8)
        if update == 6:
            x[3, 2] = float("inf")
        loss = F.mse_loss(model(x), torch.ones(64, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def remainder_without_a_loader() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        for i in range(10):
            loss = model(torch.randn(8, 8)).pow(2).mean() / 4
            loss.backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def weights_put_back() -> None:
    model = nn.Linear(8, 4)
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    for _ in range(30):
        model.load_state_dict(start)
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluated_before_the_loop() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 8))
    for _ in range(12):
        loss = model(torch.randn(8, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def rate_far_too_large() -> None:
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    for _ in range(200):
        x = torch.randn(64, 16)
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adapters_far_too_fast() -> None:
    """The layer norm behind the adapters keeps the loss where it is, whatever becomes of them."""
    down, up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
    norm, head = nn.LayerNorm(32), nn.Linear(32, 40)
    for part in (norm, head):
        part.requires_grad_(False)
    optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()], lr=20.0)
    for _ in range(80):
        x = torch.randn(64, 32)
        loss = F.cross_entropy(head(norm(x + up(down(x)))), x.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def feature_of_a_zero() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for update in range(12):
        rows = torch.rand(64, 8)
        if update == 6:
            rows[3, 2] = 0.0
        features = torch.log(rows)
        loss = F.mse_loss(model(features), torch.ones(64, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def rate_raised_once() -> None:
    train_at(lambda update: 3.0 if update == 60 else 1e-3)


def rate_raised_for_good() -> None:
    train_at(lambda update: 3.0 if update >= 60 else 1e-3)


def train_at(rate: Callable[[int], float]) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for update in range(120):
        optimizer.param_groups[0]["lr"] = rate(update)
        x = torch.randn(64, 8)
        loss = F.mse_loss(model(x), 3 * x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def detached_part() -> None:
    encoder, head = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
    for _ in range(40):
        x = torch.randn(64, 8)
        loss = F.cross_entropy(head(encoder(x).detach()), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def half_of_the_model() -> None:
    encoder, decoder = nn.Linear(8, 16), nn.Linear(16, 8)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
    for _ in range(12):
        x = torch.randn(64, 8)
        loss = F.mse_loss(decoder(encoder(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("train", "code", "words"),
    [
        (broken_input, "FL623", "x holds a non-finite value at [3, 2] at update 6"),
        (remainder_without_a_loader, "FL107", "2 here, where a window has 4"),
        (weights_put_back, "FL625", "in all of the 30 updates so far"),
        (evaluated_before_the_loop, "FL804", "eval() is still in effect"),
        (rate_far_too_large, "FL123", "The learning rate of 0.3 is far too large"),
        (adapters_far_too_fast, "FL123", "The learning rate of 20 is far too large"),
        (feature_of_a_zero, "FL623", "features holds a non-finite value at [3, 2] at update 6"),
        (rate_raised_for_good, "FL624", "The learning rate rose from 0.001 to 3 at update 60."),
        (rate_raised_once, "FL120", "The learning rate rose from 0.001 to 3 at update 60."),
        (detached_part, "FL122", "got no gradient"),
        (half_of_the_model, "FL126", "decoder.bias, decoder.weight receive gradients"),
    ],
)
def test_what_is_said(train: Callable[[], None], code: str, words: str) -> None:
    seen = watched(train)
    assert words in one(seen, code).message
    assert {f.code for f in seen.serious} == {code}


def test_a_loss_that_grows_with_its_data_has_not_diverged() -> None:
    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for update in range(20):
            x = torch.full((4, 8), update / 20)
            loss = F.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seen = watched(train)
    losses = [loss for _, loss in seen.run.tracks[0].losses()]
    assert losses[-1] > 10 * losses[0] and not seen.serious


def test_a_compiled_function_without_graph_breaks_can_be_watched() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(fullgraph=True, backend="eager")
    def loss_of(x: Any) -> Any:
        return F.mse_loss(model(x), x[:, :1])

    def train() -> None:
        for _ in range(3):
            loss = loss_of(torch.randn(8, 8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert watched(train).failure is None


def test_labels_that_are_shifted_by_one_leave_the_same_gap_in_every_row() -> None:
    """Transformers masks the last token of each block: the mean is still over the same number of them."""
    logits = torch.randn(4, 8, 5, requires_grad=True)
    labels = torch.randint(0, 5, (4, 8))
    labels[:, -1] = -100
    cross_entropy = nn.functional.cross_entropy
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert facts_of(loss, ())["counted"] == (28, False)
    labels[0, 5:] = -100
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert facts_of(loss, ())["counted"] == (26, True)


@pytest.mark.parametrize(("most", "told"), [(6, False), (9, True)])
def test_a_mask_that_leaves_out_the_same_number_each_time_is_no_mean_of_means(
    most: int, told: bool
) -> None:
    """A masked autoencoder hides the same share of every image; padding differs from batch to batch."""

    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for update in range(8):
            for micro in range(2):
                mask = torch.zeros(12)
                mask[torch.randperm(12)[: 6 if (update + micro) % 2 else most]] = 1
                errors = model(torch.randn(12, 8)).square().mean(1)
                ((errors * mask).sum() / mask.sum() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert ("FL111" in {f.code for f in watched(train).findings}) is told


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_a_worker_lends_to_the_shared_model_are_used(to_none: bool) -> None:
    """As A3C does it. Since zero_grad() sets to None, it no longer clears the worker's own."""

    def train() -> None:
        shared, local = nn.Linear(8, 1), nn.Linear(8, 1)
        optimizer = torch.optim.SGD(shared.parameters(), lr=0.001)
        for _ in range(12):
            local.load_state_dict(shared.state_dict())
            loss = F.mse_loss(local(torch.randn(16, 8)), torch.randn(16, 1))
            optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            for mine, theirs in zip(local.parameters(), shared.parameters(), strict=True):
                if theirs.grad is not None:
                    break
                theirs._grad = mine.grad  # type: ignore[attr-defined]
            optimizer.step()

    found = watched(train).findings
    assert [f.code for f in found if f.code != "FL133"] == (["FL106"] if to_none else [])
    if to_none:
        assert "the model that computed them keeps its own" in found[0].message


class _Asks(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.dropout(super().forward(x), 0.5, self.training)


@pytest.mark.parametrize(
    ("layer", "severity"),
    [
        (nn.Dropout(0.0), "info"),
        (nn.LSTM(8, 8), "info"),
        (nn.Dropout(0.5), "error"),
        (nn.LSTM(8, 8, num_layers=2, dropout=0.5), "error"),
        (_Asks(8, 8), "error"),
    ],
    ids=["no dropout", "LSTM", "dropout", "LSTM with dropout", "asks for its mode"],
)
def test_eval_that_stays_on_matters_where_the_model_has_a_mode(layer: Any, severity: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            made = self.layer(x)
            return self.head(made[0] if isinstance(made, tuple) else made)

    def train() -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model.train()
        for _ in range(3):
            for _ in range(5):
                optimizer.zero_grad()
                F.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1)).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                model(torch.randn(16, 8))

    assert one(watched(train), "FL804").severity.value == severity


@pytest.mark.parametrize("clears", [True, False])
def test_a_step_that_evaluates_its_closure_often_has_the_loss_of_the_last_time(
    clears: bool,
) -> None:
    """Where LBFGS is stepped once, the whole training is that step."""
    x = torch.linspace(-1, 1, 40).reshape(-1, 1)
    losses: list[float] = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=30, line_search_fn="strong_wolfe"
        )

        def closure() -> Any:
            if clears:
                optimizer.zero_grad()
            loss = F.mse_loss(model(x), x.square())
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)

    seen = watched(train)
    run = seen.run
    assert [f.code for f in seen.findings] == ([] if clears else ["FL106"])
    (row,) = run.tracks[0].rows
    assert row.loss == losses[-1] and row.micro_batches == 1
    said = measured(run, run.tracks[0])["loss"]
    assert said.endswith(f"in the {len(losses)} evaluations of this update")
    assert said.startswith(f"{number(losses[0])} → {number(losses[-1])} ")


def test_several_optimizers_are_told_apart() -> None:
    def train() -> None:
        actor, critic = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)), nn.Linear(4, 1)
        actor[0](torch.randn(8, 4))  # a part that is called alone is not named beside the whole
        for model in (actor, critic):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()

    text = summary(watched(train).run, [], lambda said, *_: said)
    assert re.search(
        r"optimizer#1 \(SGD\) trains \w+, stepped at \S+test_told_rightly.py:\d+", text
    )
    assert re.search(r"optimizer#2 \(SGD\) trains ", text)

"""Shapes of loops that public scripts have and that a run was wrong or silent about."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributions import Categorical  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim.lr_scheduler import LinearLR, StepLR  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from fallline.rules.tuning.fl025_samples_repeated import SamplesRepeated  # noqa: E402
from fallline.runs.prints import BATCH, Print  # noqa: E402
from fallline.runs.series import Rank, Series  # noqa: E402
from watcher.matrix.drive import watched  # noqa: E402


def critic_first(updates: int = 24) -> None:
    """PPO with an optimizer for each network: the critic is trained before the actor's turn comes."""
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    for_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    states = torch.randn(64, 4)
    with torch.no_grad():
        policy = Categorical(logits=actor(states))
        actions = policy.sample()
        old = policy.log_prob(actions)
    returns = (actions == (states[:, 0] > 0)).float()
    for _ in range(updates):
        loss = F.mse_loss(critic(states).squeeze(-1), returns)
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
    for _ in range(updates):
        advantages = (returns - critic(states).squeeze(-1)).detach()
        ratio = (Categorical(logits=actor(states)).log_prob(actions) - old).exp()
        loss = -(ratio * advantages).mean()
        for_actor.zero_grad()
        loss.backward()
        for_actor.step()


def test_a_critic_that_is_trained_first_is_no_policy_without_a_gradient() -> None:
    assert not [f for f in watched(critic_first).findings if f.code == "FL022"]


def compared_optimizers(called: bool) -> None:
    """One line serves several networks, each with an optimizer of its own; or their weights, where no module is called."""
    models = [nn.Linear(1, 1) for _ in range(4)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for _ in range(20):
        x = torch.rand(8, 1)
        for model, optimizer in zip(models, optimizers, strict=True):
            output = model(x) if called else x @ model.weight.T + model.bias
            optimizer.zero_grad()
            F.mse_loss(output, x**2).backward()
            optimizer.step()


@pytest.mark.parametrize("called", [True, False])
def test_one_line_that_trains_several_networks_wipes_no_gradients(called: bool) -> None:
    assert not watched(lambda: compared_optimizers(called)).findings


def target_of_another_shape() -> None:
    model, criterion = nn.Linear(8, 1), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        x = torch.randn(1, 10, 8)
        loss = criterion(model(x), x.sum(-1))  # FL139
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def remainder_on_one_line() -> None:
    x = torch.randn(60, 8)
    loader = DataLoader(list(zip(x, x[:, :1], strict=True)), batch_size=10)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            (F.mse_loss(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0: optimizer.step(); optimizer.zero_grad()  # FL107  # noqa: E701, E702  # fmt: skip


def scheduled_twice(second: Callable[[Any], Any] | None = None) -> None:
    generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    one = StepLR(of_critic, 20)
    other = second(of_critic) if second is not None else StepLR(of_critic, 20)
    for _ in range(20):
        made = generator(torch.randn(16, 8))
        loss = F.softplus(critic(made.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = F.softplus(-critic(made)).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        one.step()  # FL134
        other.step()


def copied_optimizer() -> None:
    """Two critics: the second optimizer was copied from the first one's line."""
    generator, one, other = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_one = torch.optim.Adam(one.parameters(), lr=1e-3)
    of_other = torch.optim.Adam(one.parameters(), lr=1e-3)  # FL126
    for _ in range(24):
        made = generator(torch.randn(16, 8))
        for critic, optimizer in ((one, of_one), (other, of_other)):
            optimizer.zero_grad()
            F.softplus(critic(made.detach())).mean().backward()
            optimizer.step()
        of_generator.zero_grad()
        F.softplus(-one(made) - other(made)).mean().backward()
        of_generator.step()


def handed_over_and_cleared() -> None:
    """Meta-learning without any backward: gradients are taken, handed over, and cleared before the step."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(24):
        x = torch.randn(16, 8)
        gradients = torch.autograd.grad(F.mse_loss(model(x), x[:, :1]), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient / 4.0
        model.zero_grad()
        optimizer.step()  # FL132


def softmax_over_samples() -> None:
    """Few-shot learning: distances to three prototypes, normalised over the samples, read by a hand-written loss."""
    encoder = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    targets = torch.arange(3).view(3, 1, 1).expand(3, 5, 1)
    for _ in range(8):
        prototypes = encoder(torch.randn(3, 8))
        distances = (encoder(torch.randn(15, 8))[:, None] - prototypes[None]).pow(2).sum(2)
        scores = F.log_softmax(-distances, dim=0).view(3, 5, -1)
        loss = -scores.gather(2, targets).squeeze().view(-1).mean()
        optimizer.zero_grad()
        loss.backward()  # FL609
        optimizer.step()


class Lars(torch.optim.SGD):
    """It scales gradients in place while it steps."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.01 * p.norm() / (p.grad.norm() + 1e-8))
        return super().step(closure)


def around_ddp() -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
        optimizer = Lars(model.parameters(), lr=0.1)
        for _ in range(6):
            loss = model.module(torch.randn(16, 8)).pow(2).mean()  # FL309
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("train", "code"),
    [
        (copied_optimizer, "FL126"),
        (handed_over_and_cleared, "FL132"),
        (softmax_over_samples, "FL609"),
        (around_ddp, "FL309"),
        (target_of_another_shape, "FL139"),
        (remainder_on_one_line, "FL107"),
        (scheduled_twice, "FL134"),
    ],
)
def test_what_is_said_and_where(train: Callable[[], None], code: str) -> None:
    seen = watched(train)
    (found,) = [f for f in seen.findings if f.code == code]
    with open(__file__, encoding="utf-8") as file:
        assert f"# {code}" in file.read().splitlines()[found.at.line - 1]


def test_one_update_that_leaves_nothing_of_the_weights() -> None:
    """A contrastive loss cannot diverge: all outputs become the same, and it stays at the logarithm of the batch size."""

    def train() -> None:
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=30.0)
        for _ in range(24):
            x = torch.rand(24, 16)
            one, other = (F.normalize(model(x + 0.1 * torch.rand(24, 16)), dim=1) for _ in range(2))
            loss = F.cross_entropy(one @ other.T / 0.07, torch.arange(24))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (found,) = [f for f in watched(train).findings if f.code == "FL123"]
    assert "The learning rate of 30 is far too large" in found.message


def test_a_picture_of_the_graph_is_no_evaluation() -> None:
    """TensorBoard's graph: `torch.jit.trace` calls the model in eval mode, and records."""

    def train() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        kept = []
        for _ in range(3):
            model.eval()
            kept.append(torch.jit.trace(model, torch.randn(2, 8)))
            model.train()
            for _ in range(8):
                x = torch.randn(16, 8)
                optimizer.zero_grad()
                F.mse_loss(model(x), x[:, :1]).backward()
                optimizer.step()

    assert not watched(train).findings


class Codebook(nn.Module):
    """Moving averages that are made anew in each forward pass, as parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes = nn.Linear(8, 4), nn.Parameter(torch.randn(16, 4))

    def forward(self, x: Any) -> Any:
        z = self.encoder(x)
        nearest = torch.cdist(z, self.codes).argmin(1)
        mine = F.one_hot(nearest, 16).float()
        fresh = (mine.T @ z.detach()) / mine.sum(0).clamp(min=1)[:, None]
        self.codes = nn.Parameter(0.9 * self.codes.detach() + 0.1 * fresh)
        return z + (self.codes[nearest] - z).detach(), z


def test_parameters_that_forward_replaces() -> None:
    def train() -> None:
        model, head = Codebook(), nn.Linear(4, 8)
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
        for _ in range(50):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            quantised, z = model(x)
            (F.mse_loss(head(quantised), x) + z.pow(2).mean()).backward()
            optimizer.step()

    (found,) = [f for f in watched(train).findings if f.code == "FL122"]
    assert "no module holds them" in found.message


def test_a_warm_up_beside_a_decay_is_no_scheduler_too_many() -> None:
    seen = watched(lambda: scheduled_twice(lambda optimizer: LinearLR(optimizer, total_iters=5)))
    assert not [f for f in seen.findings if f.code == "FL134"]


def ranks(*seeds: int, one_batch: bool = False, **facts: Any) -> Series:
    run = Series()
    for number, seed in enumerate(seeds):
        track = run.track(number, "optimizer#1")
        track.facts |= facts
        generator = torch.Generator().manual_seed(seed)
        prints = [
            Print(BATCH, "loader#1", n, 0, array("d", torch.rand(4, generator=generator).tolist()))
            for n in range(8)
        ]
        if one_batch:
            prints = [Print(BATCH, "loader#1", p.index, 0, prints[0].values) for p in prints]
        run.ranks.append(Rank(number, {"world": len(seeds)}, prints=prints))
    return run


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (ranks(1, 1, wrapper="ddp"), [0, 1]),
        (ranks(1, 2, 1, wrapper="ddp"), [0, 2]),
        (ranks(1, 2, wrapper="ddp"), None),
        (ranks(1, 1), None),  # nothing says that they share the data
        (ranks(1, 1, wrapper="ddp", sharded=True), None),  # parts of one model
        (ranks(1, 1, wrapper="ddp", one_batch=True), None),  # a trial: can it learn one batch?
    ],
)
def test_ranks_that_are_given_the_same_batches(run: Series, told: list[int] | None) -> None:
    found = list(SamplesRepeated().check_series(run))
    assert [f.evidence["ranks"] for f in found] == ([] if told is None else [told])

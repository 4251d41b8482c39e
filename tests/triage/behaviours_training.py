"""What happens in training, as claims say it does: each function executes one behaviour (`backs: torch:NAME` names it), in milliseconds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def _fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, lr: float) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- losses and learning rates -------------------------------------------------------------------------------------------------------
def too_high_a_rate_diverges() -> None:
    x = torch.randn(64, 4)
    y = x @ torch.randn(4, 1)
    low = _fit(nn.Linear(4, 1), x, y, 30, 0.05)
    high = _fit(nn.Linear(4, 1), x, y, 30, 2.0)
    assert low[-1] < low[0] and high[-1] > 10 * high[0]


def a_seen_sample_is_easier() -> None:
    model = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (
        torch.randn(64, 20),
        torch.randint(2, (64,)),
    )  # nothing to learn but the samples themselves
    passes = []
    for _ in range(6):
        losses = []
        for n in range(0, 64, 8):
            loss = F.cross_entropy(model(x[n : n + 8]), y[n : n + 8])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        passes.append(sum(losses) / len(losses))
    assert all(a > b for a, b in itertools.pairwise(passes))


def a_small_set_is_noisy() -> None:
    losses = torch.rand(1000, 1024)
    assert losses[:, :16].mean(1).std() > 5 * losses.mean(1).std()


def dropout_raises_the_training_loss() -> None:
    x = torch.randn(256, 10)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        train = F.cross_entropy(model(x), y)
        model.eval()
        assert train > F.cross_entropy(model(x), y)


def one_class_cross_entropy_is_zero() -> None:
    loss = F.cross_entropy(torch.randn(8, 1, requires_grad=True), torch.zeros(8, dtype=torch.long))
    assert loss.item() == 0.0


def saturated_discriminator_gives_no_gradient() -> None:
    score = torch.tensor([-20.0], requires_grad=True)  # a fake that is surely recognised
    torch.log(1 - torch.sigmoid(score)).sum().backward()
    assert score.grad is not None and score.grad.abs().item() < 1e-8
    score = torch.tensor([-6.0], requires_grad=True)  # with the non-saturating loss it stays
    loss = F.binary_cross_entropy_with_logits(score, torch.ones(1))
    loss.backward()
    assert loss.item() > 6 and score.grad is not None and score.grad.item() < -0.99


def detached_fake_leaves_the_generator_alone() -> None:
    generator, judge = nn.Linear(2, 2), nn.Linear(2, 1)
    fake = generator(torch.randn(4, 2))
    judge(fake.detach()).sum().backward()
    assert generator.weight.grad is None
    judge(fake).sum().backward()  # its graph is still there
    assert generator.weight.grad is not None


def mean_over_nothing_is_nan() -> None:
    labels = torch.full((4,), -100)
    assert F.cross_entropy(torch.randn(4, 3), labels, ignore_index=-100).isnan()
    assert torch.empty(0).mean().isnan()


def broadcast_loss_predicts_the_mean() -> None:
    x = torch.randn(64, 1)
    y = 3 * x[:, 0]
    model = nn.Linear(1, 1)
    with pytest.warns(UserWarning, match="broadcasting"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()  # [64, 1] against [64]
            optimizer.step()
    assert abs(model.weight.item()) < 0.1 and abs(model.bias.item() - y.mean().item()) < 0.1


def seeds_differ_by_more_than_a_few_tenths() -> None:
    x, test = torch.randn(300, 10), torch.randn(500, 10)
    truth = torch.randn(10)
    y, wanted = ((v @ truth + 0.8 * torch.randn(len(v)) > 0).long() for v in (x, test))
    scores = []
    for seed in range(5):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scores.append(100 * (model(test).argmax(1) == wanted).float().mean().item())
    assert max(scores) - min(scores) > 0.3


def near_duplicates_leak() -> None:
    videos = torch.randn(40, 8)
    labels = torch.randint(2, (40,))  # nothing to learn: only the video can be recognised
    frames = videos.repeat_interleave(10, 0) + 0.05 * torch.randn(400, 8)
    y = labels.repeat_interleave(10)
    order = torch.randperm(400)
    train, shuffled = order[:300], order[300:]
    near = torch.cdist(frames[shuffled], frames[train]).argmin(1)
    assert (y[train][near] == y[shuffled]).float().mean() > 0.95  # frames of the same videos
    near = torch.cdist(frames[300:], frames[:300]).argmin(1)
    assert (y[:300][near] == y[300:]).float().mean() < 0.8  # videos that are new


# --- optimizers and schedules --------------------------------------------------------------------------------------------------------
def adams_first_steps_are_full_size() -> None:
    for gradient in (1e-6, 1.0, 1e6):
        p = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.Adam([p], lr=1e-3)
        p.grad = torch.tensor([gradient])
        optimizer.step()
        assert math.isclose(p.item(), -1e-3, rel_tol=0.02)


def gradient_noise_falls_with_the_batch() -> None:
    samples = torch.randn(4096, 64)
    small = samples[:, :16].mean(1).std().item()
    assert math.isclose(small / samples.mean(1).std().item(), 2.0, rel_tol=0.1)


def decay_ten_erases_the_weights() -> None:
    p = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([p], lr=1e-3, weight_decay=10.0)
    for _ in range(500):
        p.grad = torch.zeros(1)
        optimizer.step()
    assert p.item() < 0.01


def decay_shrinks_a_gain() -> None:
    norm = nn.LayerNorm(4)
    optimizer = torch.optim.AdamW(norm.parameters(), lr=1e-2, weight_decay=0.1)
    for p in norm.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert bool((norm.weight < 1.0).all())


def foreach_works_per_group() -> None:
    calls = []
    real = torch._foreach_mul_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_mul_", lambda *a, **k: calls.append(1) or real(*a, **k))
        for groups in (1, 10):
            parameters = [nn.Parameter(torch.ones(2)) for _ in range(10)]
            size = 10 // groups
            split = [{"params": parameters[n : n + size]} for n in range(0, 10, size)]
            optimizer = torch.optim.AdamW(split, foreach=True)
            for p in parameters:
                p.grad = torch.ones(2)
            before = len(calls)
            optimizer.step()
            calls.append(0)
            if groups == 1:
                once = len(calls) - before
    assert len(calls) - before > 5 * once


def the_larger_loss_owns_the_gradient() -> None:
    shared = nn.Linear(8, 8)
    x = torch.randn(32, 8)
    one, two = shared(x).pow(2).mean() * 1000, shared(x).abs().mean()
    grads = [torch.autograd.grad(loss, shared.weight, retain_graph=True)[0] for loss in (one, two)]
    assert F.cosine_similarity(grads[0].flatten(), sum(grads).flatten(), 0) > 0.999  # type: ignore[union-attr]


def contrastive_accumulation_has_fewer_negatives() -> None:
    z = F.normalize(torch.randn(64, 16), dim=1)

    def info_nce(part: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            part @ part.T / 0.1 - 1e9 * torch.eye(len(part)), torch.arange(len(part)).roll(1)
        )

    whole = info_nce(z)
    pieces = torch.stack([info_nce(part) for part in z.split(8)]).mean()
    assert whole - pieces > 1.0  # ln of the number of negatives


def t_max_counts_calls() -> None:
    p = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    rates = []
    for _ in range(60):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates[29] < 1e-9 and rates[59] > 0.99


def sequential_refuses_plateau() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer)
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, plateau], [5])


def zero_grad_anywhere_between_step_and_backward() -> None:
    ends = []
    for first in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            if first:
                optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


def a_new_scheduler_starts_at_zero() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    made = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    for _ in range(20):
        optimizer.step()
        made.step()
    state = made.state_dict()
    assert optimizer.param_groups[0]["lr"] == 1.0
    again = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    assert math.isclose(optimizer.param_groups[0]["lr"], 0.1)
    again.load_state_dict(state)
    assert again.get_last_lr() == [1.0]


def add_param_group_reaches_new_parameters() -> None:
    old, new = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([old], lr=0.1)
    old.grad = new.grad = torch.ones(1)
    optimizer.step()
    assert new.item() == 1.0
    optimizer.add_param_group({"params": [new], "lr": 0.01})
    optimizer.step()
    assert math.isclose(new.item(), 0.99, rel_tol=1e-5)


# --- autograd and modules ------------------------------------------------------------------------------------------------------------
def a_new_tensor_has_no_graph() -> None:
    model = nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    torch.tensor(loss.item(), requires_grad=True).backward()
    assert model.weight.grad is None


def no_grad_cuts_what_is_before() -> None:
    front, head = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        features = front(torch.ones(1, 2))
    head(features).sum().backward()
    assert front.weight.grad is None and head.weight.grad is not None


def mse_wants_the_same_shape() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        F.mse_loss(torch.randn(10, 133), torch.zeros(10))


def integers_have_no_gradient() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        torch.zeros(2, dtype=torch.uint8).requires_grad_()


def batchnorm_of_one_sample() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.randn(1, 3))
    image = nn.BatchNorm2d(3)(torch.randn(1, 3, 4, 4) * 5 + 7)
    assert image.mean(dim=(0, 2, 3)).abs().max() < 1e-5  # its own statistics


def autocast_ends_before_backward() -> None:
    model = nn.Linear(4, 4)
    grads = []
    for inside in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        grads.append(model.weight.grad.clone())  # type: ignore[union-attr]
    assert torch.equal(*grads) and grads[0].dtype == torch.float32


def ctx_intermediate_breaks_double_backward() -> None:
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.twice = x * 2
            return ctx.twice**2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return 4 * ctx.twice * g

    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Kept.apply, x)
    with pytest.raises(RuntimeError):
        torch.autograd.gradgradcheck(Kept.apply, x)


def hook_sees_none_for_data() -> None:
    seen: list[Any] = []
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda m, grad_input, grad_output: seen.append(grad_input[0]))
    layer(torch.ones(1, 2)).sum().backward()
    layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert seen[0] is None and seen[1] is not None


def nonreentrant_checkpoint_keeps_the_gradient() -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = nn.Linear(3, 3), torch.randn(2, 3)
    layer(x).sum().backward()
    wanted = layer.weight.grad.clone()  # type: ignore[union-attr]
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.equal(layer.weight.grad, wanted)  # type: ignore[arg-type]


# --- precision -----------------------------------------------------------------------------------------------------------------------
def float_sums_depend_on_the_order() -> None:
    values = torch.randn(100_000)
    assert values.sum().item() != values.view(1000, 100).sum(0).sum().item()


def block_quantised_moments_are_coarse() -> None:
    moments = torch.tensor([1.0, 1e-3, 1e-4])  # one block: a frequent token beside a rare one
    stored = (moments / moments.max() * 255).round() / 255 * moments.max()
    assert stored[1:].abs().max() == 0.0 and stored[0] == 1.0


def bf16_logprobs_differ() -> None:
    logits = torch.randn(64, 1000) * 5
    full = logits.log_softmax(-1)[:, 0]
    half = logits.bfloat16().log_softmax(-1)[:, 0].float()
    assert 1e-3 < (full - half).abs().max() < 1.0


def quantising_the_sum_loses_the_adapter() -> None:
    grid = torch.linspace(-1, 1, 16)
    base = grid[torch.randint(16, (1000,))]  # exactly on the grid
    change = 0.01 * torch.randn(1000)
    merged = grid[(base + change).unsqueeze(1).sub(grid).abs().argmin(1)]
    assert (merged - base).abs().max() == 0.0  # nothing of the change is left


def eager_backend_bisects() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    assert torch.equal(torch.compile(model, backend="eager")(x), model(x))
    torch._dynamo.reset()


def compile_replays_side_effects() -> None:
    kept: list[torch.Tensor] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.append(x + 1)
        return x * 2

    fast = torch.compile(step, backend="eager")
    fast(torch.ones(1)), fast(torch.ones(1))
    torch._dynamo.reset()
    assert len(kept) == 2

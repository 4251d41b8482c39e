"""Accumulation against the big batch: where it is exact, where it is not, and what each mistake does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Trainee,
    Window,
    beyond,
    cosine,
    gradient,
    off,
    plain,
    train,
)

K = 4


@experiment(
    "token-weighted-accumulation",
    claim="With unequal token counts, mean losses divided by k do not give the big batch's gradient; sums divided by all tokens of the window do.",
    taught="The divisor is always accumulation_steps, whatever the padding; it equals one large batch.",
)
def token_weighted_accumulation() -> Measured:
    counts = {
        "equal": (48, 48, 48, 48),
        "32/58/45/64": (32, 58, 45, 64),
        "256/8/8/8": (256, 8, 8, 8),
        "256/256/256/4": (256, 256, 256, 4),
    }
    errors = {name: _token_errors(tokens) for name, tokens in counts.items()}
    return Measured(
        sides={
            "mean / k": {f"gradient error, tokens {n}": e[0] for n, e in errors.items()},
            "sum / all tokens of the window": {
                f"gradient error, tokens {n}": e[1] for n, e in errors.items()
            },
        },
        conclusion=(
            f"with 32/58/45/64 tokens the gradient is {100 * errors['32/58/45/64'][0]:.0f}% off, "
            f"with 256/256/256/4 {100 * errors['256/256/256/4'][0]:.0f}%; sum / all tokens is exact"
        ),
        holds={
            "exact where all are equal": errors["equal"][0] < 1e-12,
            "off by more than 3 percent where they differ a little": errors["32/58/45/64"][0]
            > 0.03,
            "off by more than half where they differ much": errors["256/256/256/4"][0] > 0.5,
            "sum / all tokens is always exact": max(e[1] for e in errors.values()) < 1e-12,
        },
    )


@experiment(
    "sum-over-total-is-exact",
    claim="Dividing a summed loss by the window's real tokens is exact; dividing a mean once more by its own count is wrong.",
    taught="Dividing the loss by the number of real samples is wrong: it mixes concerns.",
)
def sum_over_total_is_exact() -> Measured:
    tokens = (32, 58, 45, 64)
    exact, twice = (_window_error(tokens, how) for how in ("sum / total", "mean / count"))
    return Measured(
        sides={
            "sum / tokens of the window": {"gradient error": exact},
            "mean / its own count": {"gradient error": twice},
        },
        conclusion=f"sum / total is exact (error under 1e-12), a mean divided by its own count is {100 * twice:.0f}% off",
        holds={"sum / total is exact": exact < 1e-12, "mean / count is not": twice > 0.5},
    )


@experiment(
    "equal-micro-batches-are-exact",
    claim="With equal micro-batches loss / k gives the big batch's gradient.",
)
def equal_micro_batches_are_exact() -> Measured:
    mean, unscaled = (_window_error((48,) * K, how) for how in ("mean / k", "mean"))
    return Measured(
        sides={"loss / k": {"gradient error": mean}, "no division": {"gradient error": unscaled}},
        conclusion=f"loss / k is exact (error under 1e-12), without the division the gradient is {100 * unscaled:.0f}% off",
        holds={"loss / k is exact": mean < 1e-12, "without it 300%": abs(unscaled - 3) < 1e-6},
    )


@experiment(
    "dividing-gradients-once-is-exact",
    claim="Dividing the gradients once, before the step, is the same as dividing every loss.",
    taught="Scaling gradients instead of the loss is wrong.",
)
def dividing_gradients_once_is_exact() -> Measured:
    error = _window_error((48,) * K, "mean", divide_at_end=K)
    by_loss = _window_error((48,) * K, "mean / k")
    undivided = _window_error((48,) * K, "mean")
    return Measured(
        sides={
            "gradients divided once": {"gradient error": error},
            "each loss divided": {"gradient error": by_loss},
            "nothing divided": {"gradient error": undivided},
        },
        conclusion=f"gradients divided by k once before the step and losses divided by k both give the big batch's gradient to 1e-12; without a division it is {100 * undivided:.0f}% off",
        holds={
            "the gradients divided once are the big batch's": error < 1e-12,
            "so are those of divided losses": by_loss < 1e-12,
            "undivided ones are not": abs(undivided - (K - 1)) < 1e-6,
        },
    )


@experiment(
    "dividing-gradients-each-time-compounds",
    claim="Dividing the gradients after every micro-batch divides the first of them k times.",
    taught="Scaling gradients in every micro-step is merely inefficient and error-prone.",
)
def dividing_gradients_each_time_compounds() -> Measured:
    parameter = nn.Parameter(torch.zeros(K, dtype=torch.float64))
    for i in range(K):
        parameter[i].backward()  # micro-batch i leaves its mark at place i
        assert parameter.grad is not None
        parameter.grad /= K
    assert parameter.grad is not None
    got = parameter.grad.tolist()
    return Measured(
        sides={
            "divided after each backward": {
                f"weight of micro-batch {i + 1}": w for i, w in enumerate(got)
            },
            "should be": {f"weight of micro-batch {i + 1}": 1 / K for i in range(K)},
        },
        conclusion=f"the four micro-batches weigh 1/{1 / got[0]:.0f}, 1/{1 / got[1]:.0f}, 1/{1 / got[2]:.0f} and 1/{1 / got[3]:.0f}, together {sum(got):.3f} instead of 1",
        holds={"the first is divided k times": got == [K**-4, K**-3, K**-2, K**-1]},
    )


@experiment(
    "accumulation-is-not-always-the-big-batch",
    claim="Batch norm, in-batch negatives, a short last batch and summed losses make accumulation differ from the big batch.",
    taught="Accumulation is equivalent to a big batch: same results.",
)
def accumulation_is_not_always_the_big_batch() -> Measured:
    torch.manual_seed(0)
    shift = torch.arange(K).repeat_interleave(16)[:, None]
    x = torch.randn(64, 8, dtype=torch.float64) + shift
    target = torch.randn(64, 16, dtype=torch.float64)
    plain_net = nn.Sequential(nn.Linear(8, 16)).double()
    normed = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)
    ).double()
    quarters = [16] * K

    def mse(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y)

    def summed(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y, reduction="sum")

    def contrastive(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.normalize(out) @ F.normalize(y).T / 0.1, torch.arange(len(out)))

    errors = {
        "mean loss, no batch norm": _against_big_batch(plain_net, mse, x, target, quarters),
        "batch norm": _against_big_batch(normed, mse, x, target, quarters),
        "in-batch negatives (InfoNCE)": _against_big_batch(
            plain_net, contrastive, x, target, quarters
        ),
        "last batch short (20/20/20/4)": _against_big_batch(
            plain_net, mse, x, target, [20, 20, 20, 4]
        ),
        "summed loss, divided by k": _against_big_batch(plain_net, summed, x, target, quarters),
    }
    return Measured(
        sides={name: {"gradient error": error} for name, error in errors.items()},
        conclusion="gradient error against the big batch: "
        + ", ".join(f"{name} {100 * error:.0f}%" for name, error in errors.items()),
        holds={
            "exact for a mean loss": errors["mean loss, no batch norm"] < 1e-12,
            "batch norm: over 5 percent": errors["batch norm"] > 0.05,
            "in-batch negatives: over 5 percent": errors["in-batch negatives (InfoNCE)"] > 0.05,
            "short last batch: over 5 percent": errors["last batch short (20/20/20/4)"] > 0.05,
            "summed loss: k times too small": abs(errors["summed loss, divided by k"] - 0.75)
            < 1e-9,
        },
    )


def _against_big_batch(
    net: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    sizes: Sequence[int],
) -> float:
    net.zero_grad()
    loss(net(x), y).backward()
    truth = gradient(net)
    net.zero_grad()
    for part_x, part_y in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True):
        (loss(net(part_x), part_y) / len(sizes)).backward()
    return off(gradient(net), truth)


@experiment(
    "remainder-is-underscaled",
    claim="A step over r of k micro-batches, each divided by k, is r/k of the true mean.",
    taught="An optimizer.step() after the epoch handles the leftover micro-batches.",
)
def remainder_is_underscaled() -> Measured:
    shares = {}
    for r in (1, 2, 3, 4):
        torch.manual_seed(r)
        by_k, whole = nn.Linear(4, 1).double(), nn.Linear(4, 1).double()
        whole.load_state_dict(by_k.state_dict())
        left = torch.randn(r, 8, 4, dtype=torch.float64)
        for x in left:
            (by_k(x).pow(2).mean() / K).backward()
        whole(left).pow(2).mean().backward()  # the mean over all samples that are left
        shares[r] = float(gradient(by_k).norm() / gradient(whole).norm())
    return Measured(
        sides={f"{r} of {K} micro-batches": {"gradient / true mean": s} for r, s in shares.items()},
        conclusion=f"with 1, 2, 3 of k = {K} leftover micro-batches the gradient is {shares[1]:.2f}, {shares[2]:.2f}, {shares[3]:.2f} of what it should be",
        holds={"r/k of the true mean": all(abs(s - r / K) < 1e-9 for r, s in shares.items())},
    )


@experiment(
    "leftovers-leak",
    claim="Leftover micro-batches without a step or zero_grad weigh in the next epoch's first update: (r + k) / k instead of 1.",
)
def leftovers_leak() -> Measured:
    batches, epochs = 6, 2
    parameter = nn.Parameter(torch.zeros(1))
    weights = []  # of each update: how many micro-batches it holds, over k
    for _ in range(epochs):
        for i in range(batches):
            (parameter.sum() / K).backward()
            if (i + 1) % K == 0:
                assert parameter.grad is not None
                weights.append(parameter.grad.item())
                parameter.grad = None
    return Measured(
        sides={
            "first epoch": {"weight of its first update": weights[0]},
            "second epoch": {"weight of its first update": weights[1]},
        },
        conclusion=f"with {batches} micro-batches an epoch and k = {K} the second epoch's first update weighs {weights[1]:.2f} instead of {weights[0]:.2f}",
        holds={"(r + k) / k": weights == [1.0, 1.5]},
    )


@experiment(
    "unscaled-accumulation-by-optimizer",
    claim="Without the division SGD's steps are k times too long; with Adam, or with clipping active, nobody notices.",
    taught="Not scaling the loss acts like a learning rate of k times, with any optimizer.",
)
def unscaled_accumulation_by_optimizer() -> Measured:
    def ratio(kind: type[torch.optim.Optimizer], max_norm: float | None = None) -> float:
        scaled, unscaled = (
            train(_accumulating(divisor, max_norm), updates=1, k=K, optimizer=kind, lr=0.01)
            for divisor in (K, 1)
        )
        return unscaled.steps[0] / scaled.steps[0]

    ratios = {
        "SGD": ratio(torch.optim.SGD),
        "Adam": ratio(torch.optim.Adam),
        "AdamW": ratio(torch.optim.AdamW),
        "SGD, clipped at 0.1": ratio(torch.optim.SGD, 0.1),
    }
    # The first step is not the run: what are the losses after many?
    adam, unscaled_adam = (
        train(_accumulating(divisor, None), k=K, optimizer=torch.optim.Adam, lr=0.01)
        for divisor in (K, 1)
    )
    sgd, unscaled_sgd = (train(_accumulating(divisor, None), k=K, lr=0.3) for divisor in (K, 1))
    ends = {"SGD": (unscaled_sgd, sgd), "Adam": (unscaled_adam, adam)}
    return Measured(
        sides={
            name: {"first step, unscaled / scaled": r}
            | (
                {
                    "loss after 40 updates, unscaled": beyond(ends[name][0].losses[-1], 10),
                    "loss after 40 updates, scaled": beyond(ends[name][1].losses[-1], 10),
                }
                if name in ends
                else {}
            )
            for name, r in ratios.items()
        },
        conclusion=", ".join(f"{name}: first step {r:.3f} times" for name, r in ratios.items())
        + f"; after 40 updates Adam's loss is {unscaled_adam.losses[-1]:.3f} instead of {adam.losses[-1]:.3f}, SGD's {beyond(unscaled_sgd.losses[-1], 10)} instead of {sgd.losses[-1]:.3f}",
        holds={
            "SGD is k times too far": abs(ratios["SGD"] - K) < 1e-3,
            "so SGD's run ends elsewhere": not unscaled_sgd.losses[-1] < 2 * sgd.losses[-1],
            "Adam's run ends where it should": abs(unscaled_adam.losses[-1] / adam.losses[-1] - 1)
            < 0.02,
            "Adam and AdamW are not": max(abs(ratios[n] - 1) for n in ("Adam", "AdamW")) < 0.01,
            "clipping hides it": abs(ratios["SGD, clipped at 0.1"] - 1) < 1e-3,
        },
    )


@experiment(
    "missing-zero-grad-grows",
    claim="Without zero_grad the n-th update holds the gradients of all updates before it.",
)
def missing_zero_grad_grows() -> Measured:
    def norms(zero: bool) -> list[float]:
        parameter = nn.Parameter(torch.zeros(3))
        found = []
        for _ in range(8):
            parameter.sum().backward()
            assert parameter.grad is not None
            found.append(float(parameter.grad.norm()) / 3**0.5)
            if zero:
                parameter.grad = None
        return found

    wrong, right = norms(zero=False), norms(zero=True)
    return Measured(
        sides={
            "no zero_grad": {"gradient at update 8, in true ones": wrong[-1]},
            "zero_grad": {"gradient at update 8, in true ones": right[-1]},
        },
        conclusion=f"with a constant gradient the eighth update holds {wrong[-1]:.0f} of them instead of {right[-1]:.0f}",
        holds={
            "n times at update n": all(abs(w - n) < 1e-5 for n, w in enumerate(wrong, 1)),
            "with zero_grad once at each": all(abs(r - 1) < 1e-5 for r in right),
        },
        curves={"no zero_grad": wrong, "zero_grad": right},
        axes=("update", "gradient, in true ones"),
    )


@experiment(
    "zero-grad-inside-window",
    claim="zero_grad inside the window leaves only the last micro-batch, and that divided by k.",
)
def zero_grad_inside_window() -> Measured:
    def wiping(t: Trainee, window: Window) -> None:
        for x, y in window:
            t.optimizer.zero_grad()
            (t.loss(x, y) / len(window)).backward()
        t.optimizer.step()
        t.optimizer.zero_grad()

    def last_alone(t: Trainee, window: Window) -> None:
        plain(t, window[-1:])

    wrong, right = train(wiping, updates=1, k=K), train(plain, updates=1, k=K)
    alone = train(last_alone, updates=1, k=K)
    away = off(K * wrong.gradients[0], alone.gradients[0])
    share = wrong.norms[0] / right.norms[0]
    direction = cosine(wrong.gradients[0], right.gradients[0])
    return Measured(
        sides={
            "zero_grad in the window": {
                "norm / true norm": share,
                "cosine to the true gradient": direction,
            },
            "zero_grad after the step": {
                "norm / true norm": 1.0,
                "cosine to the true gradient": 1.0,
            },
        },
        conclusion=f"the gradient is that of the last micro-batch over {K}: {share:.2f} of the true length, with a cosine of {direction:.2f} to the true one",
        holds={
            "it is the last micro-batch's, divided by k": away < 1e-5,
            "far shorter than the true one": share < 0.6,
            "and in another direction": direction < 0.99,
        },
    )


@experiment(
    "clip-each-micro-batch",
    claim="Clipping after each micro-batch turns the window's gradient; it is harmless only where it never clips.",
    taught="Clipping in each micro-step distorts the gradient, always.",
)
def clip_each_micro_batch() -> Measured:
    def clipping(max_norm: float, *, each: bool) -> Callable[[Trainee, Window], None]:
        def update(t: Trainee, window: Window) -> None:
            for i, (x, y) in enumerate(window, start=1):
                (t.loss(x, y) / len(window)).backward()
                if each or i == len(window):
                    clip_grad_norm_(t.model.parameters(), max_norm)
            t.optimizer.step()
            t.optimizer.zero_grad()

        return update

    def compare(max_norm: float) -> tuple[float, float]:
        each, once = (
            train(clipping(max_norm, each=each), updates=1, k=K).gradients[0]
            for each in (True, False)
        )
        return cosine(each, once), off(each, once)

    active, idle = compare(0.3), compare(1e6)
    return Measured(
        sides={
            "clips": {"cosine to clipping once": active[0], "difference": active[1]},
            "never clips": {"cosine to clipping once": idle[0], "difference": idle[1]},
        },
        conclusion=f"where it clips, the gradient is {100 * active[1]:.0f}% from the one clipped once; where it never clips, {idle[1]:g}",
        holds={
            "active clipping turns the gradient": active[0] < 0.99,
            "and changes it": active[1] > 0.05,
            "idle clipping does not": idle[1] == 0,
        },
    )


@experiment(
    "scheduler-counts-updates",
    claim="T_max counts updates: given in micro-batches, the rate never gets down; stepped per micro-batch, it swings.",
    taught="T_max is the number of steps (of the loop, that is, micro-batches).",
)
def scheduler_counts_updates() -> Measured:
    micro_batches = 400

    def rates(t_max: int, *, per_micro_batch: bool) -> list[float]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, t_max)
        found = []
        for i in range(1, micro_batches + 1):
            if i % K == 0:
                optimizer.step()
                found.append(float(optimizer.param_groups[0]["lr"]))
            if per_micro_batch or i % K == 0:
                scheduler.step()
        return [*found, float(optimizer.param_groups[0]["lr"])]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch sees that the scheduler steps first, and says so
        runs = {
            "T_max = 100 updates": rates(100, per_micro_batch=False),
            "T_max = 400 micro-batches": rates(400, per_micro_batch=False),
            "T_max = 100, stepped per micro-batch": rates(100, per_micro_batch=True),
        }
    right, long, swinging = runs.values()
    return Measured(
        sides={name: {"rate at the end": found[-1]} for name, found in runs.items()},
        conclusion=f"the rate ends at {right[-1]:.3f} with T_max in updates, at {long[-1]:.3f} with T_max in micro-batches; stepped per micro-batch it is back at {swinging[50]:.3f} halfway",
        holds={
            "in updates it ends at zero": right[-1] < 1e-6,
            "in micro-batches it stays over 0.08": long[-1] > 0.08,
            "per micro-batch it has come back up halfway": swinging[25] < 1e-3
            and swinging[50] > 0.099,
        },
        curves={name: found[:-1] for name, found in runs.items()},
        axes=("update", "learning rate"),
    )


def _accumulating(divisor: int, max_norm: float | None) -> Callable[[Trainee, Window], None]:
    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) / divisor).backward()
        if max_norm is not None:
            clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update


def _token_errors(tokens: Sequence[int]) -> tuple[float, float]:
    return _window_error(tokens, "mean / k"), _window_error(tokens, "sum / total")


def _window_error(tokens: Sequence[int], how: str, divide_at_end: int = 1) -> float:
    """How far a window's gradient is from that of one big batch with the same tokens.

    Each micro-batch is of another kind, as sequences of different length are.
    """
    torch.manual_seed(0)
    net = nn.Linear(8, 5).double()
    parts = [torch.randn(n, 8, dtype=torch.float64) + i / 2 for i, n in enumerate(tokens)]
    answers = [torch.randint(5, (n,)) for n in tokens]
    F.cross_entropy(net(torch.cat(parts)), torch.cat(answers)).backward()
    truth = gradient(net)
    net.zero_grad()
    for x, y in zip(parts, answers, strict=True):
        losses = F.cross_entropy(net(x), y, reduction="none")
        loss = {
            "mean": losses.mean(),
            "mean / k": losses.mean() / len(tokens),
            "mean / count": losses.mean() / len(x),
            "sum / total": losses.sum() / sum(tokens),
        }[how]
        loss.backward()
    return off(gradient(net) / divide_at_end, truth)

"""What recurrent networks, graphs, rankings and probabilities do, as claims/recurrent.md, nodes-and-edges.md, confidence.md and recommending.md say it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


# --- recurrent -----------------------------------------------------------------------------------------------------------------------
def a_sequence_carries_its_own_state() -> None:
    rnn, x = nn.LSTM(2, 3, batch_first=True), torch.randn(1, 6, 2)
    whole, _ = rnn(x)
    first, state = rnn(x[:, :3])
    passed, fresh = rnn(x[:, 3:], state)[0], rnn(x[:, 3:])[0]
    assert torch.allclose(torch.cat([first, passed], 1), whole, atol=1e-6)
    assert not torch.allclose(fresh, whole[:, 3:], atol=1e-3)


def rnn_hidden_follows_the_batch() -> None:
    rnn = nn.GRU(2, 3, batch_first=True)
    _, state = rnn(torch.ones(4, 5, 2))
    try:
        rnn(torch.ones(3, 5, 2), state)
    except RuntimeError as error:
        assert "Expected hidden size" in str(error)
    else:
        raise AssertionError


def recursion_contracts_to_a_fixed_point() -> None:
    series = torch.randn(400)
    for n in range(1, 400):  # a series with memory, in which the best one-step guess is 0.8 of it
        series[n] = 0.8 * series[n - 1] + 0.1 * series[n]
    slope = (series[1:] * series[:-1]).sum() / (series[:-1] ** 2).sum()
    guess = series[-1] + 1.0
    for _ in range(50):
        guess = slope * guess
    assert guess.abs() < 0.01


def a_network_does_not_extrapolate() -> None:
    x = torch.linspace(0, 1, 64)[:, None]
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(200):
        loss = F.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-3 and (net(torch.full((1, 1), 5.0)) - 5).abs() > 1


def recurrent_dropout_is_between_layers() -> None:
    import warnings

    x = torch.randn(1, 4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = nn.LSTM(2, 8, dropout=0.5), nn.LSTM(2, 8, num_layers=2, dropout=0.5)
    assert torch.equal(one(x)[0], one(x)[0]) and not torch.equal(two(x)[0], two(x)[0])


def a_cell_loop_equals_the_module() -> None:
    rnn, cell = nn.LSTM(2, 3), nn.LSTMCell(2, 3)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in rnn.state_dict().items()})
    x, state = torch.randn(5, 1, 2), (torch.zeros(1, 3), torch.zeros(1, 3))
    for step in x:
        state = cell(step, state)
    assert torch.allclose(state[0], rnn(x)[0][-1], atol=1e-6)


# --- graphs --------------------------------------------------------------------------------------------------------------------------
def _spread(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The mean over neighbours, and the node itself."""
    out = x.clone().index_add(0, edges[1], x[edges[0]])
    count = torch.ones(len(x)).index_add(0, edges[1], torch.ones(edges.size(1)))
    return out / count[:, None]


RING = torch.tensor([[n for n in range(8)] * 2, [(n + 1) % 8 for n in range(8)] + [n - 1 if n else 7 for n in range(8)]])  # fmt: skip


def sampled_neighbours_see_only_a_part() -> None:
    x = torch.randn(8, 3)
    kept = RING[:, (RING[1] == 0)]  # a sample around the seed node 0
    assert torch.allclose(_spread(kept, x)[0], _spread(RING, x)[0])
    assert not torch.allclose(_spread(kept, x)[1], _spread(RING, x)[1])


def joined_graphs_do_not_mix() -> None:
    one, two = torch.randn(8, 3), torch.randn(8, 3)
    joined = _spread(torch.cat([RING, RING + 8], 1), torch.cat([one, two]))
    assert torch.allclose(joined, torch.cat([_spread(RING, one), _spread(RING, two)]))


def averaging_over_neighbours_smooths() -> None:
    x = torch.randn(8, 3)
    spread = [x.var(0).sum().item()]
    for _ in range(30):
        x = _spread(RING, x)
        spread.append(x.var(0).sum().item())
    assert spread[30] < 1e-3 * spread[0] and spread[2] > 0.05 * spread[0]


# --- probabilities -------------------------------------------------------------------------------------------------------------------
def temperature_keeps_the_ranking() -> None:
    logits, labels = 5 * torch.randn(500, 3), torch.randint(0, 3, (500,))
    scale = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale], lr=0.1, max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits * scale, labels)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    assert scale.item() < 0.2  # labels are random: the confident logits have to be flattened
    assert torch.equal((logits * scale).argmax(1), logits.argmax(1))


def temperature_needs_logits() -> None:
    labels = torch.randint(0, 3, (400,))
    logits = 3 * F.one_hot(labels, 3).float() + 2 * torch.randn(400, 3)
    grid = torch.linspace(0.3, 3, 28)
    scores = torch.stack([F.cross_entropy(logits / t, labels) for t in grid])
    assert scores.min() <= F.cross_entropy(logits, labels) + 1e-6
    probabilities = (logits / grid[scores.argmin()]).softmax(1)
    assert F.cross_entropy(probabilities, labels) > scores.min() + 0.2  # a second softmax flattens


def samplers_with_different_seeds_overlap() -> None:
    from torch.utils.data import DistributedSampler

    for seeds, whole in (((0, 0), True), ((0, 1), False)):
        parts = [
            DistributedSampler(range(100), 2, rank, seed=seed)  # type: ignore[arg-type,var-annotated]
            for rank, seed in enumerate(seeds)
        ]
        assert (len({i for part in parts for i in part}) == 100) == whole


def training_longer_makes_overconfident() -> None:
    x, y = torch.randn(60, 100), torch.randint(0, 2, (60,))  # nothing to learn but the samples
    net, fresh = nn.Linear(100, 2), torch.randn(500, 100)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    confidence = []
    for step in range(200):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (5, 199):
            confidence.append(net(fresh).softmax(1).max(1).values.mean().item())
    assert confidence[1] > confidence[0] and confidence[1] > 0.8  # and right in half of them


def resampling_shifts_probabilities() -> None:
    x = torch.randn(4000, 1)
    y = (torch.rand(4000) < 0.1).float()  # one in ten, whatever x is
    for weight, wanted in ((1.0, 0.1), (9.0, 0.5)):
        bias = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([bias], lr=2.0)
        for _ in range(200):
            given = bias.expand(len(x))
            loss = F.binary_cross_entropy_with_logits(given, y, pos_weight=torch.tensor(weight))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert abs(bias.sigmoid().item() - wanted) < 0.03
    restored = 0.5 / (0.5 + 0.5 * 9)  # p / (p + (1 - p) * weight)
    assert abs(restored - 0.1) < 1e-6


def a_sampler_with_replacement_repeats() -> None:
    from torch.utils.data import WeightedRandomSampler

    drawn = list(WeightedRandomSampler(torch.ones(1000), 1000))
    assert 580 < len(set(drawn)) < 680  # about 1 - 1/e of them
    labels = torch.tensor([0] * 900 + [1] * 100)
    weights = 1 / torch.bincount(labels)[labels]
    share = labels[list(WeightedRandomSampler(weights, 2000))].float().mean()
    assert 0.45 < share < 0.55


# --- rankings ------------------------------------------------------------------------------------------------------------------------
def sampled_negatives_shift_the_scores() -> None:
    scores = torch.randn(1, 1000)
    full = F.cross_entropy(scores, torch.tensor([0]))
    few = F.cross_entropy(scores[:, :11], torch.tensor([0]))
    assert few < full - 2  # eleven candidates are an easier task than a thousand


def padding_rows_stay_zero() -> None:
    table = nn.Embedding(4, 3, padding_idx=0)
    table(torch.tensor([0, 1])).sum().backward()
    assert table.weight.grad is not None
    assert not table.weight.grad[0].any() and table.weight.grad[1].all()


def sparse_gradients_need_their_optimizer() -> None:
    table = nn.Embedding(4, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    torch.optim.SparseAdam(table.parameters()).step()
    try:
        torch.optim.AdamW(table.parameters()).step()
    except RuntimeError as error:
        assert "sparse" in str(error)
    else:
        raise AssertionError


def gathered_negatives_lose_their_gradient() -> None:
    mine = torch.randn(2, 3, requires_grad=True)
    gathered = [mine.detach().clone(), torch.randn(2, 3)]  # what all_gather returns
    torch.cat(gathered).requires_grad_().sum().backward()
    assert mine.grad is None
    gathered[0] = mine  # the own part put back with its graph
    torch.cat(gathered).sum().backward()
    assert mine.grad is not None


def duplicates_are_false_negatives() -> None:
    one = F.normalize(torch.randn(3, 8), dim=1)
    batch = torch.stack([one[0], one[0], one[1], one[2]])  # the same item twice
    logits = batch @ batch.T / 0.05
    loss = F.cross_entropy(logits, torch.arange(4), reduction="none")
    assert loss[0] > math.log(2) - 0.01 > loss[2]


def unnormalised_similarities_grow() -> None:
    x = torch.randn(64, 256)
    assert (x @ x.T).abs().max() > 50 and (F.normalize(x) @ F.normalize(x).T).abs().max() < 1.001

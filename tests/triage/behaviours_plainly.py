"""What the claims of `plainly-asked.md` rest on."""

from __future__ import annotations

import torch
from tests.triage.behaviours import _alone
from torch import nn
from torch.nn import functional as F


def a_norm_falls_with_the_loss() -> None:
    net, x = nn.Linear(4, 1), torch.randn(64, 4)
    y, norms = x.sum(1, keepdim=True) * 5, []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])))  # type: ignore[misc]
        optimizer.step()
    assert norms[-1] < 0.01 * norms[0]


def a_spike_is_a_jump_of_the_norm() -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    before = F.mse_loss(net(x), y).item()
    F.mse_loss(net(x), y + 1e4).backward()  # one batch with a bad label
    optimizer.step()
    assert F.mse_loss(net(x), y).item() > 100 * before


def the_loss_of_a_batch_is_noisy() -> None:
    net, x, y = nn.Linear(4, 1), torch.randn(4096, 4), torch.randn(4096, 1)
    losses = ((net(x) - y) ** 2).detach().squeeze(1)
    small, large = losses.view(-1, 16).mean(1).std(), losses.view(-1, 256).mean(1).std()
    assert 2.5 < small / large < 6  # 16 times the batch: a quarter of the swing


def an_eighth_of_the_batch_is_another_training() -> None:
    x, y = torch.randn(512, 8), torch.randn(512, 1)
    ends = []
    for batch, rate in ((64, 0.08), (8, 0.01), (8, 0.08)):
        torch.manual_seed(0)
        net = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for i in range(0, 512, batch):
            optimizer.zero_grad()
            F.mse_loss(net(x[i : i + batch]), y[i : i + batch]).backward()
            optimizer.step()
        ends.append(net.weight.detach())
    assert (ends[0] - ends[1]).norm() < 0.5 * (ends[0] - ends[2]).norm()


def log_before_the_division() -> None:
    loss = torch.tensor(2.0, requires_grad=True)
    assert (loss / 4).item() == 0.5 and loss.item() == 2.0


def a_diffusion_loss_depends_on_the_timestep() -> None:
    noise, data = torch.randn(4000, 1), torch.randn(4000, 1) * 0.1
    losses = []
    for share in (0.01, 0.99):  # of the noise in what the model sees
        seen = (1 - share) ** 0.5 * data + share**0.5 * noise
        best = (seen * noise).mean() / seen.square().mean() * seen  # the best linear prediction
        losses.append(F.mse_loss(best, noise).item())
    assert losses[0] > 10 * losses[1]
    assert 0.9 < F.mse_loss(torch.zeros_like(noise), noise) < 1.1


def a_broken_loop_ignores_the_answer() -> None:
    y = torch.randn(64, 1)
    x = torch.cat([torch.randn(64, 3), y], 1)
    ends = []
    for broken in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.Adam((nn.Linear(4, 1) if broken else net).parameters(), lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        ends.append(loss.item())
    assert ends[0] < 1e-2 < 0.3 < ends[1]


def eval_mode_still_trains() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    before = [p.clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(torch.randn(8, 3))
    (out * torch.randn(8, 3)).sum().backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def segments_decide_what_checkpointing_saves() -> None:
    from torch.utils.checkpoint import checkpoint_sequential

    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)])
    x = torch.randn(256, 64, requires_grad=True)

    def held(segments: int) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            net(x) if not segments else checkpoint_sequential(net, segments, x, use_reentrant=False)
        return sum(sizes)

    assert held(1) == held(0) > held(2) > held(4) < held(8)


def checkpointing_keeps_loss_and_gradients() -> None:
    import copy

    from torch.utils.checkpoint import checkpoint

    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    again, x = copy.deepcopy(plain), torch.randn(8, 4)
    torch.manual_seed(0)
    a = plain(x)
    a.sum().backward()
    torch.manual_seed(0)
    b = checkpoint(again, x, use_reentrant=False)
    b.sum().backward()
    assert torch.equal(a, b) and torch.equal(plain[0].weight.grad, again[0].weight.grad)
    assert (int(plain[1].num_batches_tracked), int(again[1].num_batches_tracked)) == (1, 2)


def activations_grow_with_the_batch() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())

    def held(batch: int) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (sizes.append(t.numel() if t.shape[0] == batch else 0), t)[1], lambda t: t
        ):
            net(torch.randn(batch, 64))
        return sum(sizes)

    assert held(2000) == 20 * held(100) > sum(p.numel() for p in net.parameters())


def sdpa_applies_its_mask() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
    assert torch.allclose(out, scores.softmax(-1) @ v, atol=1e-5)
    assert not torch.allclose(out, F.scaled_dot_product_attention(q, k, v), atol=1e-2)


def dataparallel_scatters() -> None:
    import inspect

    source = inspect.getsource(nn.DataParallel.forward)
    assert "self.scatter(inputs" in source
    assert "inputs" in inspect.getsource(nn.DataParallel.scatter)


def fsdp2_wants_one_dtype_a_group() -> None:
    def body() -> None:
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        mixed = nn.Sequential(nn.Linear(4, 4).to(torch.bfloat16), nn.LayerNorm(4))
        fully_shard(mixed, mesh=mesh)
        try:
            mixed(torch.randn(2, 4, dtype=torch.bfloat16))
        except AssertionError as error:
            assert "uniform original parameter dtype" in str(error)
        else:
            raise AssertionError
        net, seen = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), []
        fully_shard(net[1], mesh=mesh)
        fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        for layer in net:
            layer.register_forward_hook(lambda m, i, o: seen.append(m.weight.dtype))
        net(torch.randn(2, 4)).sum().backward()
        assert seen == [torch.bfloat16, torch.float32]
        assert {p.grad.dtype for p in net.parameters() if p.grad is not None} == {torch.float32}

    _alone(body)


def vmap_takes_the_dimension_away() -> None:
    shapes = []
    torch.vmap(lambda x: (shapes.append(tuple(x.shape)), x.sum())[1])(torch.randn(5, 3))
    assert shapes == [(3,)]
    for randomness, fails in (("error", True), ("different", False)):
        try:
            torch.vmap(F.dropout, randomness=randomness)(torch.randn(5, 3))
        except RuntimeError as error:
            assert fails and "random" in str(error)
        else:
            assert not fails
    try:
        torch.vmap(lambda x: x if x.sum() > 0 else -x)(torch.randn(5, 3))
    except RuntimeError as error:
        assert "data-dependent control flow" in str(error)
    else:
        raise AssertionError


def scheduler_before_the_optimizer() -> None:
    import warnings

    rates = []
    for first in (True, False):
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if first:
                scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if not first:
                scheduler.step()
        assert any("before `optimizer.step()`" in str(w.message) for w in told) is first
    assert rates == [0.5, 1.0]


def fsdp_shards_parameters() -> None:
    def body() -> None:
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Shard

        net = nn.Linear(4, 4)
        fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        net(torch.randn(2, 4)).sum().backward()
        for p in net.parameters():
            assert type(p.data) is DTensor and p.placements == (Shard(0),)
            assert type(p.grad) is DTensor and p.grad.placements == (Shard(0),)

    _alone(body)


def gather_wants_as_many_dimensions() -> None:
    a, b = torch.randn(6, 2), torch.randint(0, 2, (6,))
    assert torch.equal(a.gather(1, b[:, None])[:, 0], a[torch.arange(6), b])


def dot_is_for_vectors() -> None:
    assert torch.dot(torch.ones(2), torch.ones(2)) == 2
    assert (torch.ones(3, 1) * torch.ones(3)).shape == (3, 3)


def permute_names_every_dimension() -> None:
    assert torch.ones(2, 3, 4).permute(2, 0, 1).shape == (4, 2, 3)


def each_layer_shrinks_the_image() -> None:
    assert nn.MaxPool2d(2)(nn.Conv2d(3, 6, 5)(torch.ones(1, 3, 32, 32))).shape == (1, 6, 14, 14)


def some_modules_return_tuples() -> None:
    assert isinstance(nn.LSTM(2, 2)(torch.ones(3, 1, 2)), tuple)


def a_loader_gives_what_the_dataset_returns() -> None:
    from torch.utils.data import DataLoader

    assert isinstance(next(iter(DataLoader([(1, 2), (3, 4)], batch_size=2))), list)  # type: ignore[arg-type]
    assert isinstance(next(iter(DataLoader([1, 2], batch_size=2))), torch.Tensor)  # type: ignore[arg-type]


def names_of_the_module_are_taken() -> None:
    net = nn.Linear(1, 1)
    net.modules = nn.ModuleDict({"a": nn.Linear(1, 1)})  # type: ignore[assignment]
    assert callable(net.modules) and "modules" in net._modules


def a_moved_parameter_is_a_result() -> None:
    assert not nn.Parameter(torch.ones(1)).to(torch.float64).is_leaf
    assert nn.Linear(1, 1).to(torch.float64).weight.is_leaf


def a_collapsed_generator_ignores_its_input() -> None:
    noise, healthy, collapsed = torch.randn(16, 8), nn.Linear(8, 32), nn.Linear(8, 32)
    with torch.no_grad():
        collapsed.weight.zero_()
        assert (
            torch.pdist(collapsed(noise)).mean() < 1e-5 < 0.5 < torch.pdist(healthy(noise)).mean()
        )

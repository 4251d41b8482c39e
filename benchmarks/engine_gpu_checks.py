"""What the one-pass kernel must get right on a GPU. Run by engine_gpu.py and by tests/engine/test_gpu.py alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fallline

DEVICE = "cuda"
torch_clip = torch.nn.utils.clip_grad_norm_


# -- gradients as real models have them -----------------------------------------------------------------------------


def gpt_shapes(
    layers: int, width: int, vocabulary: int = 50257, context: int = 1024
) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(vocabulary, width), (context, width)]
    for _ in range(layers):
        shapes += [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
        shapes += [
            (width,),
            (width,),
            (width, 4 * width),
            (4 * width,),
            (4 * width, width),
            (width,),
        ]
    return [*shapes, (width,), (width,)]


def parameters_with_grad(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, own_values: bool = False
) -> list[nn.Parameter]:
    torch.manual_seed(0)
    parameters = []
    for shape in shapes:
        grad = torch.randn(shape, device=DEVICE, dtype=dtype) * 1e-3
        parameter = nn.Parameter(torch.randn_like(grad) if own_values else torch.empty_like(grad))
        parameter.grad = grad
        parameters.append(parameter)
    return parameters


def copies(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [p.grad.clone() for p in parameters]  # type: ignore[union-attr]


def put_back(parameters: list[nn.Parameter], grads: list[Tensor]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad.copy_(grad)  # type: ignore[union-attr]


# -- the checks -----------------------------------------------------------------------------------------------------


def assert_close(got: Tensor, want: Tensor, what: str, relative: float = 1e-5) -> None:
    torch.testing.assert_close(
        got.double(),
        want.double(),
        rtol=relative,
        atol=1e-12,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def odd_parameters() -> list[nn.Parameter]:
    """Mixed dtypes, one element, ragged sizes, misaligned memory, channels_last, many zeros: all in one launch."""
    torch.manual_seed(1)
    flat = torch.randn(1_000_003, device=DEVICE)
    grads = [
        torch.randn(1, device=DEVICE),
        torch.randn(2049, device=DEVICE),
        flat[1:],
        flat[:5000].clone().bfloat16(),
        torch.randn(333, 777, device=DEVICE).half(),
        torch.randn(100_001, device=DEVICE).bfloat16()[1:],
        torch.randn(8, 16, 5, 5, device=DEVICE).to(memory_format=torch.channels_last),
        torch.randn(70_000, device=DEVICE) * (torch.rand(70_000, device=DEVICE) < 0.1),
        torch.full((4097,), 3.0, device=DEVICE),
    ]
    parameters = []
    for grad in grads:
        parameter = nn.Parameter(torch.empty_like(grad))
        parameter.grad = grad
        parameters.append(parameter)
    return parameters


def check_statistics() -> None:
    parameters = odd_parameters()
    stats = fallline.gradient_stats(parameters)
    for i, parameter in enumerate(parameters):
        grad = parameter.grad.double()  # type: ignore[union-attr]
        assert_close(stats.norm[i], grad.norm(), f"norm of {i}")
        assert_close(stats.mean[i] + 1.0, grad.mean() + 1.0, f"mean of {i}")
        assert_close(stats.std[i] + 1e-3, grad.std(correction=0) + 1e-3, f"std of {i}")
        assert_close(stats.largest[i], grad.abs().max(), f"largest of {i}")
        assert int(stats.zeros[i]) == int((grad == 0).sum()), f"zeros of {i}"
        assert int(stats.nonfinite[i]) == 0


def check_nonfinite() -> None:
    for value in (math.inf, -math.inf, math.nan):
        for place in (0, 2048, 40_000, 99_999):
            parameter = nn.Parameter(torch.empty(100_000, device=DEVICE))
            parameter.grad = torch.randn(100_000, device=DEVICE)
            parameter.grad[place] = value
            parameter.grad[17] = value
            stats = fallline.gradient_stats([parameter])
            assert int(stats.nonfinite[0]) == len({17, place}), (value, place)
            wanted = parameter.grad.norm()
            assert_close(stats.norm[0], wanted, "norm")
            assert_close(stats.largest[0], parameter.grad.abs().max(), "largest")
            torch.testing.assert_close(
                fallline.clip_grad_norm_([parameter], math.inf), wanted, equal_nan=True
            )


def check_clip_against_torch() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        shapes = gpt_shapes(12, 768) if dtype is torch.float32 else gpt_shapes(2, 256)
        parameters = parameters_with_grad(shapes, dtype)
        before = copies(parameters)
        exact = torch.stack([g.double().norm() for g in before]).norm()
        for max_norm in (float(exact) / 3, float(exact) * 3):
            put_back(parameters, before)
            total = fallline.clip_grad_norm_(parameters, max_norm)
            assert total.dtype is dtype and total.device.type == DEVICE and total.shape == ()
            assert_close(total, exact, "total norm", 1e-5 if dtype is torch.float32 else 1e-2)
            coefficient = min(1.0, max_norm / (float(exact) + 1e-6))
            for grad, old in zip(copies(parameters), before, strict=True):
                wanted = (old.float() * coefficient).to(dtype)
                torch.testing.assert_close(
                    grad.float(),
                    wanted.float(),
                    rtol=1e-5 if dtype is torch.float32 else 1e-2,
                    atol=1e-8,
                )
            if max_norm > float(exact):
                assert all(
                    torch.equal(a, b) for a, b in zip(copies(parameters), before, strict=True)
                ), "not clipping must not write"


def check_groups_and_norms() -> None:
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 50)).to(DEVICE)
    model(torch.randn(64, 300, device=DEVICE)).square().sum().backward()
    before = copies(list(model.parameters()))
    norms = fallline.clip_grad_norm_(model, 0.5, per="layer")
    wanted = torch.stack(
        [torch.stack([before[i].norm(), before[i + 1].norm()]).norm() for i in (0, 2)]
    )
    assert_close(norms, wanted, "norms of layers")
    for i, grad in enumerate(copies(list(model.parameters()))):
        assert_close(grad, before[i] * (0.5 / (wanted[i // 2] + 1e-6)), "clipped layer", 1e-4)
    for order in (1.0, 3.0, math.inf):
        put_back(list(model.parameters()), before)
        mine = fallline.clip_grad_norm_(model, math.inf, order)
        torch.testing.assert_close(mine, torch_clip(model.parameters(), math.inf, order))


def check_moving_gradients() -> None:
    """The cached pointers are rebuilt when gradients move, and two sets of the same sizes are not mixed up."""
    parameters = parameters_with_grad([(1000,), (777, 3)], torch.float32)
    other = parameters_with_grad([(1000,), (777, 3)], torch.float32)
    for step in range(1, 6):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, float(step))
        keep = [p.grad for p in parameters]  # so that the next round cannot get the same memory
        assert_close(
            fallline.clip_grad_norm_(parameters, math.inf),
            torch.tensor(step * math.sqrt(1000 + 777 * 3), device=DEVICE),
            "moved",
        )
        fallline.clip_grad_norm_(other, math.inf)
        del keep


def check_same_bits() -> None:
    parameters = parameters_with_grad(gpt_shapes(4, 512), torch.float32)
    norms = {float(fallline.clip_grad_norm_(parameters, math.inf)) for _ in range(20)}
    assert len(norms) == 1, f"the same gradients gave different norms: {norms}"


def check_no_host_sync() -> None:
    parameters = parameters_with_grad(gpt_shapes(2, 256), torch.float32)
    fallline.clip_grad_norm_(parameters, 1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fallline.clip_grad_norm_(parameters, 1.0)
        fallline.gradient_stats(parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_graph_capture() -> None:
    """Captured with static gradients; and with gradients that are born inside the capture."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(DEVICE)
    x = torch.randn(32, 256, device=DEVICE)

    def step() -> Tensor:
        for p in model.parameters():
            p.grad = None
        (model(x) ** 2).sum().backward()
        return fallline.clip_grad_norm_(model.parameters(), 1.0)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(32, 256, device=DEVICE) * (seed + 1))
        graph.replay()
        replayed, grads = captured.clone(), copies(list(model.parameters()))
        again = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(DEVICE)
        again.load_state_dict(model.state_dict())
        (again(x) ** 2).sum().backward()
        assert_close(replayed, torch_clip(again.parameters(), 1.0), "norm from the graph")
        for mine, p in zip(grads, again.parameters(), strict=True):
            torch.testing.assert_close(mine, p.grad, rtol=1e-4, atol=1e-6)


def check_stepper() -> None:
    """The engine on a GPU against the big batch, with a fused and a plain optimizer, in every precision."""
    for precision, tolerance in (("fp32", 2e-5), ("bf16", 3e-2), ("fp16", 3e-2)):
        for fused in (True, False):
            torch.manual_seed(0)
            big = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).to(DEVICE)
            small = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).to(DEVICE)
            small.load_state_dict(big.state_dict())
            start = [p.detach().clone() for p in big.parameters()]
            x, y = torch.randn(70, 20, device=DEVICE), torch.randn(70, 5, device=DEVICE)
            optimizer = torch.optim.SGD(small.parameters(), lr=0.5, fused=fused)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            stepper = fallline.Stepper(
                small,
                optimizer,
                accumulate=4,
                clip_norm=0.05,
                precision=precision,
                scheduler=scheduler,
            )  # type: ignore[arg-type]
            # 7: a window of 4 and a remainder of 3
            batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 70, 10)]
            for inputs, targets in stepper.over(batches):
                with stepper.micro_batch() as micro:
                    weight = torch.tensor(targets.numel(), device=DEVICE)
                    micro.backward((small(inputs) - targets).square().sum(), weight=weight)
            reference = torch.optim.SGD(big.parameters(), lr=0.5)
            for part in (slice(0, 40), slice(40, 70)):
                reference.zero_grad()
                (big(x[part]) - y[part]).square().mean().backward()
                torch_clip(big.parameters(), 0.05)
                reference.step()
            assert stepper.updates == 2 and stepper.last is not None and stepper.last.clipped, (
                precision,
                fused,
            )
            moved = torch.cat(
                [(p.detach() - s).flatten() for p, s in zip(big.parameters(), start, strict=True)]
            )
            error = torch.cat(
                [
                    (p - q).detach().flatten()
                    for p, q in zip(small.parameters(), big.parameters(), strict=True)
                ]
            )
            relative = float(error.norm() / moved.norm())
            assert relative < tolerance, (precision, fused, relative)


def check_stepper_does_not_wait() -> None:
    """With a fused optimizer and no scheduler the host never waits: not for the norm, not for skipping, not for the report."""
    model = nn.Linear(64, 64).to(DEVICE)
    stepper = fallline.Stepper(model, torch.optim.AdamW(model.parameters(), fused=True), accumulate=2, clip_norm=1.0, statistics=True)  # fmt: skip
    x, weight = torch.randn(8, 64, device=DEVICE), torch.tensor(8.0, device=DEVICE)

    def window() -> None:
        for _ in range(2):
            with stepper.micro_batch() as micro:
                micro.backward(model(x).square().sum(), weight=weight)

    window()
    torch.cuda.set_sync_debug_mode("error")
    try:
        window()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert stepper.updates == 2 and stepper.last is not None
    assert abs(float(stepper.last.statistics.total_norm) / stepper.last.norm - 1) < 1e-5  # type: ignore[union-attr, operator]


def check_stepper_skips() -> None:
    for fused in (True, False):
        model = nn.Linear(4, 4).to(DEVICE)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        stepper = fallline.Stepper(model, optimizer, clip_norm=1.0, precision="fp16")
        with stepper.micro_batch() as micro:
            micro.backward(model(torch.full((2, 4), math.inf, device=DEVICE)).sum())
        assert stepper.last is not None and stepper.last.skipped and stepper.updates == 0
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert stepper.scaler is not None and stepper.scaler.get_scale() == 32768.0


CHECKS: list[Callable[[], None]] = [
    check_statistics,
    check_nonfinite,
    check_clip_against_torch,
    check_groups_and_norms,
    check_moving_gradients,
    check_same_bits,
    check_no_host_sync,
    check_graph_capture,
    check_stepper,
    check_stepper_does_not_wait,
    check_stepper_skips,
]

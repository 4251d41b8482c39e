"""FL215: a contrastive loss on float16 features with autocast turned off, with and without .float()."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

from fallline.proof.experiment import Measured, experiment

TEMPERATURE = 0.07
OPERATIONS = ("exp", "log", "sum", "softmax", "norm")


@experiment(
    "FL215",
    claim="autocast(enabled=False) leaves float16 inputs in float16, where CUDA autocast would have run exp, log, sum, softmax and norms in float32: a finite loss becomes NaN.",
    taught="Turning autocast off around the loss cures its NaN.",
)
def autocast_off_without_cast() -> Measured:
    torch.manual_seed(0)
    features = torch.randn(16, 32).half()
    with torch.autocast("cpu", enabled=False):
        wrong = float(_contrastive(features))
        right = float(_contrastive(features.float()))
    on, off = _on_cuda(enabled=True), _on_cuda(enabled=False)
    return Measured(
        sides={
            "wrong": {"loss": f"{wrong:g}", **{f"{name} on CUDA": d for name, d in off.items()}},
            "right": {"loss": right, **{f"{name} on CUDA": d for name, d in on.items()}},
        },
        conclusion=f"with autocast off the loss at temperature {TEMPERATURE:g} is {wrong:g} on float16 features and {right:.1e} on .float() ones; on CUDA autocast runs {', '.join(OPERATIONS)} in {on['exp']}, turned off they stay in {off['exp']}",
        holds={
            "turned off without a cast the loss is NaN": wrong != wrong,
            "with .float() it is finite": 0 <= right < 1,
            "CUDA autocast would have used float32": set(on.values()) == {"float32"},
            "turned off, float16 stays": set(off.values()) == {"float16"},
        },
    )


def _contrastive(features: Tensor) -> Tensor:
    """-log of each feature's share of exp(similarity / T), written out."""
    features = normalize(features, dim=1)
    similarity = torch.exp(features @ features.T / TEMPERATURE)
    return -torch.log(similarity.diagonal() / similarity.sum(1)).mean()


def _on_cuda(*, enabled: bool) -> dict[str, str]:
    """The type each operation gives for float16 CUDA tensors: asked of the dispatcher, so that no CUDA device is needed."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        with FakeTensorMode():
            x = torch.empty(4, 4, device="cuda", dtype=torch.float16)
            results = x.exp(), x.log(), x.sum(), x.softmax(0), x.norm()
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    return {
        name: str(result.dtype).removeprefix("torch.")
        for name, result in zip(OPERATIONS, results, strict=True)
    }

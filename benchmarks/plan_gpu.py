"""`fallline measure plan` against measured peaks: a transformer trained for two updates on a GPU.

python benchmarks/plan_gpu.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
from fallline.instruments.plan import GB, Model, plan

# layers, width, tokens, checkpointing, what is trained
SETTINGS = [
    (12, 768, 4096, False, "full"),
    (24, 1024, 8192, False, "full"),
    (24, 2048, 8192, False, "full"),
    (24, 2048, 8192, True, "full"),
    (32, 2560, 4096, True, "full"),
    (32, 4096, 4096, True, "full"),
    (32, 4096, 4096, True, "lora"),
    (32, 4096, 2048, False, "lora"),
]
VOCABULARY = 32_000


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.one(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.two(x))))


class Adapted(nn.Module):
    """A frozen linear layer with a trained one of rank 16 beside it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.Linear(frozen.in_features, 16, bias=False)
        self.b = nn.Linear(16, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.b(self.a(x))


class Net(nn.Module):
    def __init__(self, layers: int, width: int, checkpointing: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.checkpointing = checkpointing

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x)


def peak(
    layers: int, width: int, tokens: int, checkpointing: bool, train: str
) -> tuple[float, float]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        model = Net(layers, width, checkpointing)
    count = float(sum(p.numel() for p in model.parameters()))
    if train == "lora":
        model.to(torch.bfloat16).requires_grad_(False)
        for block in model.blocks:
            for name in ("qkv", "out", "up", "down"):
                setattr(block, name, Adapted(getattr(block, name)).to("cuda"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        ids = torch.randint(0, VOCABULARY, (tokens // 1024, 1024), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated() / GB, count


def main() -> int:
    print(
        "| layers | width | tokens | checkpointing | trained | planned GB | measured GB | planned / measured |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for setting in SETTINGS:
        layers, width, tokens, checkpointing, train = setting
        measured, count = peak(*setting)
        planned = plan(
            Model(count, layers, width, VOCABULARY),
            tokens=tokens,
            checkpointing=checkpointing,
            train=train,
        )
        total = planned.as_dict()["total"] - 1.0  # torch does not count the CUDA context
        print(
            f"| {layers} | {width} | {tokens} | {'yes' if checkpointing else 'no'} | {train} | {total:.1f} | {measured:.1f} | {total / measured:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

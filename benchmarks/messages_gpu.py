"""The messages of the error index that need a GPU, as the installed torch gives them.

python benchmarks/messages_gpu.py
"""

from __future__ import annotations

import subprocess
import sys

import torch


def _tried(what: str, code: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import torch\nfrom torch import nn\n{code}"],
        capture_output=True,
        text=True,
    )
    lines = [line for line in ran.stderr.splitlines() if line.strip() and not line.startswith("  ")]
    print(f"## {what}\n" + "\n".join(lines[-6:])[:900] + "\n", flush=True)


def main() -> int:
    print(torch.__version__, torch.cuda.get_device_name())
    _tried("oom-full", "keep = [torch.empty(2**30, device='cuda') for _ in range(100)]")
    _tried(
        "oom-fragmented",
        "a = [torch.empty(2**28, device='cuda') for _ in range(120)]\ndel a[::2]\ntorch.empty(2**34, device='cuda')",
    )
    _tried(
        "device-assert",
        "nn.functional.cross_entropy(torch.randn(2, 3, device='cuda'), torch.tensor([0, 7], device='cuda')).item()",
    )
    _tried("device-mismatch", "nn.Linear(2, 2).cuda()(torch.ones(1, 2))")
    _tried("device-mismatch index", "nn.Embedding(4, 2).cuda()(torch.tensor([1]))")
    _tried(
        "cuda-fork",
        "import multiprocessing as m\ntorch.ones(1).cuda()\ndef f():\n    torch.ones(1).cuda()\np = m.get_context('fork').Process(target=f)\np.start(); p.join()",
    )
    _tried(
        "bce-autocast",
        "with torch.autocast('cuda'):\n    nn.BCELoss()(torch.rand(2, device='cuda').half(), torch.ones(2, device='cuda').half())",
    )
    _tried("numpy-from-device", "torch.ones(1, device='cuda').numpy()")
    _tried("input-type", "nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2))")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

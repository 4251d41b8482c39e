"""FL320: parameters differ between ranks that should agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.distributed._specimen import RANKS

__all__ = ["RankDesync"]


class RankDesync(Rule):
    code = "FL320"
    name = "rank-desync"
    severity = Severity.ERROR
    yields_to = ("FL309",)
    what = "The parameters of ranks that train one model have drifted apart."
    why = (
        "Data-parallel training averages gradients and assumes that every rank applies them to the same weights. Once they differ, "
        "each rank trains a different model, with gradients that are right for none of them, and the checkpoint holds rank 0's."
    )
    instead = (
        "Make every update see synchronised gradients (the last backward of a window outside `no_sync()`), call the DDP model and not "
        "`model.module`, and change parameters on all ranks alike."
    )
    wrong = (
        """\
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for update in range(20):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL320
dist.destroy_process_group()
""",
    )
    right = (
        "import os\n\n"
        + RANKS
        + """\
torch.manual_seed(dist.get_rank())
for update in range(20):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )

    tolerance = 1e-5  # of the size of a parameter; ranks that apply the same gradients agree to the last bit
    least_updates = 2  # one difference may be a rank that was read a moment earlier

    def check_series(self, run: Any) -> Iterator[Finding]:
        for name in dict.fromkeys(t.optimizer for t in run.tracks):
            tracks = [t for t in run.tracks if t.optimizer == name and t.fingerprints]
            if len(tracks) >= 2 and (found := self._compare(tracks)) is not None:
                yield found

    def _compare(self, tracks: list[Any]) -> Finding | None:
        first = tracks[0]
        if len({len(f) for t in tracks for f in t.fingerprints.values()}) != 1:
            return None  # other parameters on other ranks: pipeline or expert parallel, or a model that grew
        if first.facts.get("sharded") or first.facts.get("wrapper") in {"fsdp1", "fsdp2"}:
            return None  # each rank holds its own shard
        common = sorted(set.intersection(*(set(t.fingerprints) for t in tracks)))
        gaps = [(i, self._gap(tracks, i)) for i in common]
        apart = [(i, found) for i, found in gaps if found[0] > self.tolerance]
        together = bool(common) and common[0] not in {i for i, _ in apart}
        if len(apart) < min(self.least_updates, len(common)) or not apart:
            return None
        if not together and first.facts.get("wrapper") != "ddp":
            return None  # never equal and nothing says that they should be
        index, (gap, position, rank) = apart[0]
        name = self._name(first, position)
        agreed = max((i for i in common if i < index), default=None)
        odd = _odd_one(tracks, index)
        between = (
            f"rank {first.rank} and rank {rank}" if odd is None else f"rank {odd} and the others"
        )
        return self.finding(
            first.at,
            f"Ranks have drifted apart: before update {index}, {name} differs between {between} by "
            f"{gap:.2g} of its size"
            + ("" if agreed is None else f"; before update {agreed} they still agreed")
            + ". Their gradients no longer fit one model: find the update that is not synchronised.",
            step=index,
            parameter=name,
            gap=gap,
            last_agreed=agreed,
            threshold=self.tolerance,
            ranks=[t.rank for t in tracks],
            rank=odd,
            optimizer=first.optimizer,
        )

    @staticmethod
    def _gap(tracks: list[Any], index: int) -> tuple[float, int, int]:
        """The largest relative difference from the first rank: how much, which parameter, which rank."""
        reference = tracks[0].fingerprints[index]
        worst = (0.0, 0, tracks[0].rank)
        for track in tracks[1:]:
            other = track.fingerprints[index]
            for position in range(0, len(reference), 2):
                size = max(abs(reference[position + 1]), abs(other[position + 1]))
                difference = abs(reference[position] - other[position]) + abs(
                    reference[position + 1] - other[position + 1]
                )
                relative = difference / size if size else 0.0
                if relative > worst[0] and math.isfinite(relative):
                    worst = (relative, position // 2, track.rank)
        return worst

    @staticmethod
    def _name(track: Any, position: int) -> str:
        if track.samples and position < len(track.samples[0].layout.parameters):
            return f"'{track.samples[0].layout.parameters[position].name}'"
        return f"parameter {position}"


def _odd_one(tracks: list[Any], index: int) -> int | None:
    """The rank that differs from all others, which agree; of two that differ nobody knows which one is right."""
    prints = [tuple(t.fingerprints[index]) for t in tracks]
    common, count = Counter(prints).most_common(1)[0]
    if len(tracks) < 3 or count != len(tracks) - 1:
        return None
    odd: int = next(t.rank for t, known in zip(tracks, prints, strict=True) if known != common)
    return odd

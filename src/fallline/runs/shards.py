"""Parameters that are spread over ranks: what each rank measured of its part, put together when the run is read.

Nothing of this happens in the run: no rank has to ask the others.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from fallline.runs.samples import COLUMNS, WIDTH, WITH, Sample
from fallline.runs.series import Series, Track

__all__ = ["join_shards"]

_NORMS = ("norm", "weight")  # of parts: the root of the sum of squares
_LARGEST = ("largest", "ratio", "state")
_COUNTS = ("nonfinite",)


def join_shards(series: Series, complete: bool) -> None:
    """Give the tracks of every rank the numbers of whole parameters. `complete`: all ranks were read; otherwise parts say nothing."""
    for name in dict.fromkeys(t.optimizer for t in series.tracks):
        tracks = [t for t in series.tracks if t.optimizer == name and t.facts.get("sharded")]
        if not tracks:
            continue
        if not complete:
            for track in tracks:
                track.samples.clear()
                track.facts["alone"] = True
        elif len(tracks) > 1:
            _join_rows(tracks)
            _join(tracks)


def _join_rows(tracks: list[Track]) -> None:
    """The norm that each rank has measured is that of its part; what all ranks hold alike was measured by one of them."""
    by_rank = [{r.index: r for r in t.rows if r.grad_norm is not None} for t in tracks]
    common = set(by_rank[0]).intersection(*by_rank[1:])
    for index in common:
        parts = [rows[index] for rows in by_rank]
        whole = math.hypot(*(p.grad_norm for p in parts))
        for part in parts:
            part.grad_norm = whole
    for row in (r for t in tracks for r in t.rows if r.index not in common):
        row.grad_norm = None


def _join(tracks: list[Track]) -> None:
    by_rank = [{s.index: s for s in t.samples} for t in tracks]
    common = set(by_rank[0]).intersection(*by_rank[1:])
    for index in common:
        parts = [samples[index] for samples in by_rank]
        if len({len(p.values) for p in parts}) == 1:
            whole = _together(parts)
            for part in parts:
                part.values = whole
    for track in tracks:
        track.samples[:] = [s for s in track.samples if s.index in common]


def _together(parts: list[Sample]) -> array[float]:
    found = array("f", parts[0].values)
    for position in range(len(found)):
        column = COLUMNS[position % WIDTH]
        known = [v for p in parts if not math.isnan(v := p.values[position])]
        found[position] = _joined(column, known) if known else math.nan
    return found


def _joined(column: str, known: Iterable[float]) -> float:
    values = list(known)
    if column in _NORMS:
        return math.sqrt(
            sum(v * v for v in set(values))
        )  # equal to the last bit: copies, not parts
    if column == "state" and WITH in values:
        return WITH
    if column in _LARGEST:
        return max(values)
    return sum(values) if column in _COUNTS else sum(values) / len(values)

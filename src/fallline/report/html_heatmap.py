"""Layers over time, as a small picture: one pixel for one layer at one sample."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

from fallline.show.numbers import number

__all__ = ["heat_map", "png"]

# From small to large; readable on white and on black, and for people who do not see red and green apart.
_COLOURS = (
    (38, 40, 92),
    (45, 83, 148),
    (45, 132, 163),
    (72, 178, 150),
    (152, 214, 119),
    (246, 236, 120),
)
Pixel = tuple[int, int, int, int]


def heat_map(
    names: Sequence[str], updates: Sequence[int], rows: Sequence[Sequence[float | None]]
) -> str:
    """`rows[layer][time]` holds log10 of a gradient norm, -inf for exactly zero, None for no gradient."""
    known = sorted(v for row in rows for v in row if v is not None and math.isfinite(v))
    if not known:
        return ""
    low, high = known[int(0.01 * len(known))], known[min(len(known) - 1, int(0.995 * len(known)))]
    if high - low < 0.5:
        low, high = low - 0.25, high + 0.25
    pixels = [[_colour(value, low, high) for value in row] for row in rows]
    picture = base64.b64encode(png(pixels)).decode()
    labels = "".join(f'<span title="{escape(n)}"><bdi>{escape(n)}</bdi></span>' for n in names)
    data = {
        "names": list(names),
        "updates": list(updates),
        "rows": [[None if v is None else "0" if v == -math.inf else "!" if not math.isfinite(v) else round(v, 1) for v in row] for row in rows],
    }  # fmt: skip
    ends = [number(float(f"{10**end:.2g}")) for end in (low, high)]
    return (
        '<figure class="chart heat"><figcaption><h3>Gradient norm by layer over time</h3>'
        f'<span class="legend"><span>{ends[0]}</span><i class="ramp"></i><span>{ends[1]}</span>'
        '<span><i class="key zero"></i>zero or none</span></span></figcaption>'
        f'<div class="map" style="--rows:{len(names)}"><div class="names">{labels}</div>'
        f'<div class="canvas" data-map="{escape(json.dumps(data, separators=(",", ":")))}">'
        f'<img alt="Heat map: gradient norms of {len(names)} parameters, from the input (top) to the output, over '
        f'{len(updates)} samples" src="data:image/png;base64,{picture}"><div class="tip" hidden></div></div>'
        f'<div class="x-axis" aria-hidden="true"><span class="first" style="left:0">{number(updates[0])}</span>'
        f'<span class="last" style="left:100%">{number(updates[-1])}</span><em>update</em></div></div></figure>'
    )


def _colour(value: float | None, low: float, high: float) -> Pixel:
    if value is None or value == -math.inf:
        return (128, 128, 128, 40)
    if not math.isfinite(value):
        return (224, 49, 49, 255)
    place = min(max((value - low) / (high - low), 0.0), 1.0) * (len(_COLOURS) - 1)
    below = min(int(place), len(_COLOURS) - 2)
    share = place - below
    red, green, blue = (
        round(a + (b - a) * share)
        for a, b in zip(_COLOURS[below], _COLOURS[below + 1], strict=True)
    )
    return (red, green, blue, 255)


def png(pixels: Sequence[Sequence[Pixel]]) -> bytes:
    """The picture as a PNG file."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    raw = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )

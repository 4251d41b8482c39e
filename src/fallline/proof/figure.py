"""A picture as SVG, for a page: readable in light and dark, and the same bytes for the same numbers."""

from __future__ import annotations

from html import escape

from fallline.proof.picture import picture
from fallline.proof.record import Outcome
from fallline.show.numbers import number, value
from fallline.show.picture import Bars, Lines

__all__ = ["figure"]

_WIDTH, _HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 36
# chosen for a contrast of 3 and more on white as on near black; red and green are for a mistake and its absence
_JUDGED = {"wrong": "#d64545", "right": "#2f8f5b"}
_COLOURS = ("#3b7dd8", "#b7791f", "#8b5cc7", "#0e8a93", "#a8508c", "#6e7b3a")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#40464d}.soft{fill:#6a737d}.grid{stroke:#8b949e;stroke-opacity:.28}"
    ".edge{stroke:#8b949e;stroke-opacity:.75}.line{fill:none;stroke-width:2;stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){text{fill:#d0d7de}.soft{fill:#9aa4af}}"
)


def figure(outcome: Outcome) -> str:
    """The figure of an outcome: its curves, else bars, else what each side came to, in words."""
    what = picture(outcome)
    if isinstance(what, Lines):
        height, body = _HEIGHT, _lines(what)
    elif isinstance(what, Bars):
        height, body = _bars(what)
    else:
        height, body = _words(outcome)
    title = escape(f"{outcome.of}: {outcome.conclusion}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}"><style>{_STYLE}</style>{body}</svg>\n'
    )


def _lines(what: Lines) -> str:
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> str:
        return f"{_LEFT + across * what.x.place(value):.1f}"

    def y(value: float) -> str:
        return f"{_TOP + down * (1 - what.y.place(value)):.1f}"

    parts = []
    for tick in what.y.ticks(4):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(tick)}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, f"{float(y(tick)) + 4:.1f}", number(tick), "end", soft=True))
    parts.append(f'<path class="edge" d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>')
    below = _HEIGHT - _BOTTOM + 16
    ticks = [t for t in what.x.ticks(6) if what.x.low <= t <= what.x.high] or [what.x.low]
    parts += [_text(x(tick), below, number(tick), "middle", soft=True) for tick in ticks]
    parts.append(_text(_LEFT + across / 2, _HEIGHT - 5, what.names[0], "middle", soft=True))
    parts.append(_text(_LEFT, 12, what.names[1], "start", soft=True))
    for index, (name, points) in enumerate(what.curves.items()):
        way = "L".join(f"{x(px)} {y(py)}" for px, py in points)
        parts.append(
            f'<path class="line" {_ink(index, name)} d="M{way}{"h3" if len(points) == 1 else ""}"/>'
        )
    return "".join(parts) + (_legend(list(what.curves), 27) if len(what.curves) > 1 else "")


def _colour(index: int, name: str) -> str:
    return _JUDGED.get(name, _COLOURS[index % len(_COLOURS)])


def _ink(index: int, name: str) -> str:
    dash = _DASHES[index % len(_DASHES)]
    return f'stroke="{_colour(index, name)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend(names: list[str], at: int) -> str:
    parts, x = [], float(_LEFT)
    for index, name in enumerate(names):
        parts.append(f'<path class="line" {_ink(index, name)} d="M{x:.0f} {at - 4}h18"/>')
        parts.append(_text(f"{x + 23:.0f}", at, name, "start"))
        x += 41 + 6.4 * len(name)
    return "".join(parts)


def _bars(what: Bars) -> tuple[int, str]:
    names = list(what.values)
    left = min(270, 20 + int(7.2 * max(map(len, names))))
    across = _WIDTH - left - 90
    zero = left + across * (0.0 if what.axis.log else what.axis.place(0.0))
    note = " (logarithmic)" if what.axis.log else ""
    parts = [_text(left, 16, what.quantity + note, "start", soft=True)]
    for index, (name, size) in enumerate(what.values.items()):
        top = 28 + 26 * index
        end = left + across * what.axis.place(size)
        start, length = min(zero, end), max(abs(end - zero), 1.5)
        colour = _colour(index, name)
        parts.append(_text(left - 8, top + 13, _shown(name, 34), "end"))
        parts.append(
            f'<rect x="{start:.1f}" y="{top}" width="{length:.1f}" height="18" rx="2" fill="{colour}"/>'
        )
        parts.append(_text(f"{start + length + 6:.1f}", top + 13, value(size), "start"))
    return 28 + 26 * len(names) + 6, "".join(parts)


def _words(outcome: Outcome) -> tuple[int, str]:
    """Where there is nothing to measure with a ruler: what each side came to, side by side."""
    rows = [
        (side, quantity, came)
        for side, values in outcome.sides.items()
        for quantity, came in values.items()
    ][:8]
    parts, colours = [], {side: i for i, side in enumerate(outcome.sides)}
    for index, (side, quantity, came) in enumerate(rows):
        base = 20 + 24 * index
        colour = _colour(colours[side], side)
        parts.append(f'<rect x="6" y="{base - 11}" width="4" height="15" fill="{colour}"/>')
        parts.append(_text(18, base, f"{side}: {quantity}", "start", soft=True))
        parts.append(_text(_WIDTH - 10, base, _shown(came), "end"))
    return 24 * max(len(rows), 1) + 10, "".join(parts)


def _shown(given: object, longest: int = 44) -> str:
    text = value(given)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _text(x: object, y: object, words: str, anchor: str, *, soft: bool = False) -> str:
    looks = ' class="soft"' if soft else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{looks}>{escape(words)}</text>'

"""How two runs train: parameters at the start, learning rate, options of the optimizer, and the first number that parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fallline.diff.difference import Difference
from fallline.runs.noise import EPSILON, Judged, Noise, envelope, gaps, judge_together
from fallline.runs.prints import PARAMETERS, RATES, WIDTH, Print, distance, norm
from fallline.runs.series import Series, Track
from fallline.runs.update import UpdateRow
from fallline.show.numbers import number

__all__ = ["Pair", "causes", "parted"]

_SAME_START = (
    64.0  # epsilons: initialisation that another version or device has rounded differently
)
_NORM_ROOM = 16.0  # a gradient rounds more than a loss: it is a sum of products with both signs
_FLIPS = 2e-3  # of a gradient: a ReLU or a maximum that rounding flips changes it by one unit of one sample, and the loss by nothing
_STEP = 0.2  # of the way that the first update makes: so much is not rounding
_PARTED = 0.02  # the same, of a parameter: from here on a loss may follow from it
_SHARE = 0.25  # of the way that an element of the parameter goes that parts most
_PROBE = 1024  # elements of a parameter that are looked at
_SOON = 2  # updates after which parameters still show where it began


Curve = Callable[[Track], list[tuple[int, float]]]


@dataclass
class Pair:
    """The updates of one optimizer in both runs, on the first rank."""

    name: str
    a: Track
    b: Track
    prints: tuple[dict[int, Print], dict[int, Print]]
    layouts: tuple[list[Any], list[Any]]
    format: str
    noise: Noise = field(default_factory=Noise)

    @classmethod
    def of(cls, name: str, a: Series, b: Series) -> Pair:
        prints = _by_update(a, PARAMETERS, name), _by_update(b, PARAMETERS, name)
        layouts = _layout(a, name), _layout(b, name)
        format = shortest_format(a, b, layouts[0])
        return cls(name, _track(a, name), _track(b, name), prints, layouts, format)

    @property
    def updates(self) -> int:
        return len({r.index for r in self.a.rows} & {r.index for r in self.b.rows})

    def rows(self) -> Iterator[tuple[UpdateRow, UpdateRow]]:
        theirs = {r.index: r for r in self.b.rows}
        for row in self.a.rows:
            if row.index in theirs:
                yield row, theirs[row.index]


def _track(run: Series, name: str) -> Track:
    return next((t for t in run.of_rank(_rank(run)) if t.optimizer == name), Track(0, name))


def _rank(run: Series) -> int:
    return run.ranks[0].number if run.ranks else 0


def _by_update(run: Series, kind: str, name: str) -> dict[int, Print]:
    found = run.ranks[0].prints if run.ranks else []
    return {p.index: p for p in found if p.kind == kind and p.name == name}


def _layout(run: Series, name: str) -> list[Any]:
    return list(run.meta.get(f"layout:{name}:0") or [])


def shortest_format(a: Series, b: Series, layout: list[Any]) -> str:
    """The number format that rounds most among those that the runs compute in."""
    used = {str(run.meta.get("autocast", "off")) for run in (a, b)}
    used |= {str(p[2]) for p in layout}
    if any(_in_tf32(run) for run in (a, b)):
        used.add("tf32")
    return max(used & EPSILON.keys(), key=EPSILON.__getitem__, default="float32")


def _in_tf32(run: Series) -> bool:
    about, model = run.meta.get("environment") or {}, run.meta.get("model") or {}
    if "device" not in about:
        return False
    convolves = any(str(module.get("type", "")).startswith("Conv") for module in model.values())
    return about.get("float32 matmul precision") in ("tf32", "high", "medium") or (
        convolves and about.get("float32 convolution precision") == "tf32"
    )


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]


# -- causes ------------------------------------------------------------------------------------------------------


def causes(pair: Pair, a: Series, b: Series) -> Iterator[Difference]:
    """What is not a number that training has made."""
    yield from _shapes(pair)
    yield from _start(pair)
    yield from _rates(pair, a, b)
    yield from _groups(pair, a.meta, b.meta)
    yield from _clipping(pair)
    yield from _pieces(pair)


def _shapes(pair: Pair) -> Iterator[Difference]:
    ours, theirs = ({str(p[0]): p[1:] for p in layout} for layout in pair.layouts)
    if not ours or not theirs:
        return
    for name in {**ours, **theirs}:
        here, there = ours.get(name), theirs.get(name)
        if here == there:
            continue
        if here is None or there is None:
            only = "A" if there is None else "B"
            text = f"{name} is a parameter of the optimizer in {only} alone"
        else:
            which = 0 if here[0] != there[0] else 1
            what = "shape" if which == 0 else "dtype"
            text = f"the {what} of {name}: {here[which]} → {there[which]}"
        yield Difference("initialisation", text, 0, _module(name), name, here, there)
        return


def _start(pair: Pair) -> Iterator[Difference]:
    """The first parameter that begins differently."""
    here, there = (prints.get(0) for prints in pair.prints)
    if here is None or there is None or pair.layouts[0] != pair.layouts[1]:
        return
    odd = []
    for place, (name, _, dtype) in enumerate(pair.layouts[0]):
        if WIDTH * (place + 1) > min(len(here.values), len(there.values)):
            break
        size = max(norm(here.values, place), norm(there.values, place))
        apart = distance(here.values, there.values, place)
        if apart > _SAME_START * EPSILON.get(str(dtype), EPSILON["float32"]) * size:
            odd.append((str(name), apart / size if size else math.inf))
    if odd:
        name, apart = odd[0]
        more = f", as do {len(odd) - 1} more of {len(pair.layouts[0])}" if len(odd) > 1 else ""
        text = f"{name} begins differently, by {number(apart)} of its size{more}"
        yield Difference("initialisation", text, 0, _module(name), name)


def _rates(pair: Pair, a: Series, b: Series) -> Iterator[Difference]:
    found = [_first_rate(pair), _first_group_rate(pair, a, b)]
    known = [d for d in found if d is not None]
    if known:
        yield min(known, key=lambda d: d.order)


def _first_rate(pair: Pair) -> Difference | None:
    for ours, theirs in pair.rows():
        if not _near(ours.lr, theirs.lr):
            return _rate(pair, ours.index, "", ours.lr, theirs.lr)
    return None


def _first_group_rate(pair: Pair, a: Series, b: Series) -> Difference | None:
    ours, theirs = (_by_update(run, RATES, pair.name) for run in (a, b))
    for update in sorted(ours.keys() & theirs.keys()):
        rates = zip(ours[update].values, theirs[update].values, strict=False)
        for group, (here, there) in enumerate(rates):
            if not _near(here, there):
                return _rate(pair, update, f" of group {group}" if group else "", here, there)
    return None


def _rate(pair: Pair, update: int, of: str, a: Any, b: Any) -> Difference:
    text = f"the learning rate{of} at update {update}: {number(a)} → {number(b)}"
    return Difference("learning-rate", text, update, None, pair.name, a, b)


def _near(a: float | None, b: float | None) -> bool:
    """The same but for the rounding of a schedule that is computed in a different order."""
    if a is None or b is None or a != a or b != b:
        return a is b or (a != a and b != b)
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _groups(pair: Pair, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    types = pair.a.type, pair.b.type
    if all(types) and types[0] != types[1]:
        yield Difference("optimizer", f"{types[0]} → {types[1]}", 0, None, "type", *types)
        return
    groups, others = (meta.get(f"groups:{pair.name}") for meta in (ours, theirs))
    if groups is None or others is None:
        return
    if len(groups) != len(others):
        text = f"the optimizer has {len(groups)} → {len(others)} groups of parameters"
        yield Difference("optimizer", text, 0, None, "groups", len(groups), len(others))
        return
    for place, (here, there) in enumerate(zip(groups, others, strict=True)):
        for name in {**here, **there}:
            if here.get(name) != there.get(name):
                of = f" of group {place}" if len(groups) > 1 else ""
                text = f"{types[0] or 'the optimizer'}'s {name}{of}: {here.get(name)} → {there.get(name)}"
                yield Difference("optimizer", text, 0, None, name, here.get(name), there.get(name))


def _clipping(pair: Pair) -> Iterator[Difference]:
    for ours, theirs in pair.rows():
        limits = ours.clip_threshold, theirs.clip_threshold
        if not _near(*limits):
            said = [f"at {number(x)}" if x is not None else "off" for x in limits]
            text = f"gradient clipping at update {ours.index}: {said[0]} → {said[1]}"
            yield Difference("optimizer", text, ours.index, None, "clipping", *limits)
            return


def _pieces(pair: Pair) -> Iterator[Difference]:
    for ours, theirs in pair.rows():
        if ours.micro_batches != theirs.micro_batches:
            counts = ours.micro_batches, theirs.micro_batches
            text = f"micro-batches in update {ours.index}: {counts[0]} → {counts[1]}"
            yield Difference("options", text, ours.index, None, "micro-batches", *counts)
            return


# -- numbers -----------------------------------------------------------------------------------------------------


def parted(pair: Pair, repeats: list[Pair]) -> list[Difference]:
    """The first number that parts by more than noise; fills `pair.noise`."""
    losses, norms = judge_together(
        [
            _gaps(pair, repeats, Track.losses),
            _gaps(pair, repeats, _norms)._replace(room=_NORM_ROOM, flips=_FLIPS),
        ],
        pair.format,
    )
    pair.noise = losses
    found = [
        *_of_curve(pair, "the loss", losses, dict(pair.a.losses()), dict(pair.b.losses())),
        *_of_curve(pair, "the gradient norm", norms, dict(_norms(pair.a)), dict(_norms(pair.b))),
        *_scales(pair),
        *_first_step(pair),
    ]
    return sorted(found, key=lambda d: d.order)[:1]


def _norms(track: Track) -> list[tuple[int, float]]:
    return [(r.index, n) for r in track.rows if (n := track.norm(r)) is not None]


def _gaps(pair: Pair, repeats: list[Pair], curve: Curve) -> Judged:
    """Of one curve: the gaps, and what repeats show of them."""
    again = [gaps(dict(curve(r.a)), dict(curve(r.b))) for r in repeats]
    return Judged(gaps(dict(curve(pair.a)), dict(curve(pair.b))), envelope(again) if again else None)  # fmt: skip


def _of_curve(pair: Pair, what: str, noise: Noise, a: dict[int, float], b: dict[int, float]) -> Iterator[Difference]:  # fmt: skip
    update = noise.jump
    if update is None:
        return
    module, name = _layer(pair, update, forward=what == "the loss")
    text = f"{what} at update {update}: {_digits(a[update], b[update])}"
    if name:
        text += f", most in {name}"
    yield Difference("numbers", text, update, module, what, a[update], b[update])


def _digits(a: float, b: float) -> str:
    """As many digits as it takes to see the difference."""
    for digits in (4, 6, 8, 12):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return f"{texts[0]} → {texts[1]}"


def _scales(pair: Pair) -> Iterator[Difference]:
    """While the runs are the same bit for bit; later a scale may follow from noise."""
    for ours, theirs in pair.rows():
        if pair.noise.onset is not None and ours.index > pair.noise.onset:
            return
        if ours.scale != theirs.scale:
            text = f"the loss scale at update {ours.index}: {number(ours.scale)} → {number(theirs.scale)}"
            yield Difference("numbers", text, ours.index, None, "scale", ours.scale, theirs.scale)
            return


def _first_step(pair: Pair) -> Iterator[Difference]:
    """The first update moves the parameters differently, though its loss is the same."""
    moved = _moved(pair, 1)
    if moved and max(moved.values()) > _STEP and _start_is_same(pair):
        way = _whole(pair, 1)
        if way > _STEP:
            name = max(moved, key=moved.__getitem__)
            text = f"the first update moves the parameters differently, by {number(way)} of its length, first {name}"
            yield Difference("numbers", text, 0, _module(name), name)


def _start_is_same(pair: Pair) -> bool:
    return not list(_start(pair))


def _layer(pair: Pair, update: int, *, forward: bool) -> tuple[str | None, str]:
    """Where parameters part most: before this update where its loss parts, right after it where its gradient does."""
    looked = (update,) if forward else range(update + 1, update + 1 + _SOON)
    for at in looked:
        moved = _moved(pair, at)
        if moved and max(moved.values()) > (_PARTED if forward else 0):
            name = max(moved, key=moved.__getitem__)
            return _module(name), name
    return None, ""


def _known(pair: Pair, update: int) -> tuple[Print, Print, Print] | None:
    """The states of both runs before this update, and of A an update earlier, or at the start where that is not known."""
    begin = pair.prints[0].get(update - 1) or pair.prints[0].get(0)
    here, there = (prints.get(update) for prints in pair.prints)
    if begin is None or here is None or there is None or pair.layouts[0] != pair.layouts[1]:
        return None
    sizes = {len(begin.values), len(here.values), len(there.values), WIDTH * len(pair.layouts[0])}
    return (begin, here, there) if len(sizes) == 1 else None


def _moved(pair: Pair, update: int) -> dict[str, float]:
    """By parameter: how far the runs are apart before this update, against the way that the update before has made.

    A parameter whose gradient is nothing but rounding goes its own way in each run, by little: it does not count.
    """
    known = _known(pair, update)
    if known is None:
        return {}
    begin, here, there = (p.values for p in known)
    apart = [distance(here, there, place) for place in range(len(pair.layouts[0]))]
    typical = [a / math.sqrt(_looked_at(p[1])) for a, p in zip(apart, pair.layouts[0], strict=True)]
    least = _SHARE * max((t for t in typical if math.isfinite(t)), default=0.0)
    found = {}
    for place, (name, *_) in enumerate(pair.layouts[0]):
        way = max(distance(begin, here, place), distance(begin, there, place))
        counts = way and math.isfinite(apart[place]) and typical[place] >= least
        found[str(name)] = apart[place] / way if counts else 0.0
    return found


def _looked_at(shape: list[int]) -> int:
    """How many elements of a parameter of this shape a print is of."""
    return max(1, min(_PROBE, math.prod(shape)))


def _whole(pair: Pair, update: int) -> float:
    """The same over all parameters."""
    known = _known(pair, update)
    if known is None:
        return 0.0
    begin, here, there = (p.values for p in known)
    places = range(len(pair.layouts[0]))
    way = math.hypot(*(distance(begin, here, k) for k in places))
    apart = math.hypot(*(distance(here, there, k) for k in places))
    return apart / way if way else 0.0

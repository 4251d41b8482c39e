"""The sizes in a pasted message, and the place in the pasted code that they belong to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from math import prod

from fallline.syntax.nodes import below
from fallline.triage.calls import Facts, at, calls, keyword, name_of, number
from fallline.triage.carried import MEASURES
from fallline.triage.pasted import parsed
from fallline.triage.trace import frames, read_from

__all__ = ["of_sizes"]

_MATRICES = re.compile(
    r"(?:mat1 and mat2 shapes cannot be multiplied \(|size mismatch, m1: \[)\s*(\d+) ?x ?(\d+)\]?(?: and |, m2: \[)(\d+) ?x ?(\d+)"
)
_CHANNELS = re.compile(
    r"weight of size \[?(?P<out>\d+)[, ]+(?P<into>\d+)[\d, ]*\]?, ?expected input ?\[(?P<shape>[\d, ]+)\] ?to have (?P<want>\d+) channels, but got (?P<have>\d+) channels"
)
_BATCHES = re.compile(r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)")
_TARGET = re.compile(
    r"(?:Using a target size|Target size) \(torch\.Size\(\[(?P<target>[\d, ]*)\]\)\) (?:that is different to|must be the same as)(?: the)? input size \(torch\.Size\(\[(?P<output>[\d, ]*)\]\)\)"
)
_STACKED = re.compile(
    r"stack expects each tensor to be equal size, but got (\[[\d, ]*\]) at entry (\d+) and (\[[\d, ]*\]) at entry (\d+)"
)
_TYPES = re.compile(
    r"(?:expected scalar type (?P<a>\w+) but found (?P<b>\w+)|Found dtype (?P<c>\w+) but expected (?P<d>\w+)|expected target dtype to be (?P<e>Long) or Byte, but got (?P<f>\w+))"
)
_SIZES = re.compile(r"\[(\d+(?:, ?\d+)+)\]")
_MANY, _PIXELS = 200, 10_000
_WHOLES = re.compile(r"tensor\(\[\s*(-?\d+(?:,\s*-?\d+)+)\s*\]")
_TABLE = re.compile(r"tensor\(\[\[((?:-?\d+\.\d*(?:e[-+]\d+)?,?\s*)+)\]")
_OUTPUTS = re.compile(r"torch\.Size\(\[\d+, (\d+)\]\)")
_COLUMN = re.compile(r"\w\[['\"][\w ]+['\"]\]|\.iloc\[:, ?-?\d+\]|\w\[:, ?-?\d+\]")
_RESHAPED = re.compile(r"reshape|unsqueeze|view\(|\[:, None\]|newaxis|keepdim")
_NAMED = re.compile(r"(?:nn\.)?\b(?:Linear|Conv\dd)\([^()\n]{3,60}\)")
_ALIKE = 0.8
_KEEPS = frozenset({"view", "reshape", "permute", "transpose", "flatten", "squeeze", "unsqueeze"})
_MOVES = frozenset({"to", "cuda", "float", "long", "half", "double", "int"})
_DATA = re.compile(r"(?i)^(?:x|y|inputs?|images?|imgs?|data|targets?|labels?|batch|batch_\w+|masks?)$")  # fmt: skip
_FEW = 4  # letters: shorter names are alike by chance


def of_sizes(tree: ast.Module, text: str) -> Facts:
    """All of these facts, each where it is seen first."""
    found: Facts = {}
    flat = " ".join(text.split())
    for name, read in (
        *_dropped(tree),
        *_misspelt(tree),
        *_matrices(tree, flat),
        *_channels(tree, flat),
        *_batches(tree, flat),
        *_targets(flat, text),
        *_labels(text),
        *_inside(text),
        *_stacked(flat),
        *_positions(tree, flat),
        *_types(flat, text),
        *_around(flat, text),
        *_columns(tree),
        *_times(tree),
    ):
        found.setdefault(name, read)
    return found


def _dropped(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A line that computes another shape, type or device of a tensor and gives it to nobody."""
    for statement in below(tree, ast.Expr):
        match statement.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call:
                if method in _KEEPS and call.args:
                    yield "view dropped", at("dropped", call, name=name)
                elif method in _MOVES and _DATA.match(name):
                    yield "move dropped", at("dropped", call, name=name)


def _misspelt(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A name that is given a value nobody reads, beside one that is spelt nearly alike and is read instead."""
    names = below(tree, ast.Name)
    read = {n.id for n in names if n.ctx.__class__ is ast.Load}
    for statement in below(tree, ast.Assign):
        written = ast.unparse(statement.targets[0])
        if not written.isidentifier() or written in read or len(written) < _FEW:
            continue
        meant = [
            n.id
            for n in below(statement.value, ast.Name)
            if n.id != written and _alike(n.id, written)
        ]
        if meant and not written[-1:].isdigit():
            yield "name misspelt", at("written", statement, name=written, meant=meant[0])


def _alike(one: str, other: str) -> bool:
    """Most letters of both come in the same order."""
    row = [0] * (len(other) + 1)  # of the longest common subsequence, for each beginning of `other`
    for letter in one:
        before = 0
        for place, wanted in enumerate(other, 1):
            diagonal, before = before, row[place]
            row[place] = diagonal + 1 if letter == wanted else max(row[place], row[place - 1])
    return 2 * row[-1] > _ALIKE * (len(one) + len(other))


def _matrices(tree: ast.Module, flat: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A linear layer and what it got: `b` features where it was made for `c`."""
    match = _MATRICES.search(flat)
    if match is None:
        return
    rows, have, want, out = map(int, match.groups())
    read = {"rows": str(rows), "have": str(have), "want": str(want), "out": str(out)}
    layer = _made_for(tree, want, out)
    if layer is not None:
        read |= at("layer", layer)
    elif (layer := _made_for(_in_prose(flat), want, out)) is not None:
        read["layer"] = ast.unparse(layer)
    if layer is not None:
        yield "layer of the message", read
    spatial = want % have == 0 and (rows * have) % want == 0 and have < want
    same = next((c for c in calls(tree, "Linear", "LazyLinear") if c is not layer and _into_out(c, tree)[1] == have), None)  # fmt: skip
    if have == 1 and rows == want:
        yield "column for a row", read
    elif spatial:
        yield "not flattened", {**read, "examples": str(rows * have // want)}
    elif same is not None and have == out and _into_out(same, tree)[0] == want:
        yield "layer twice", {**read, **at("same", same)}
    elif layer is not None and have == out:
        yield "layer again", read
    elif rows % want == 0 and rows > want:
        yield "features elsewhere", {**read, "examples": str(rows // want)}
    elif (
        (channels := _channels_of(layer) if layer is not None else 0)
        and have % channels == 0
        and want % channels == 0
    ):
        grew = {"channels": str(channels), "got": str(have // channels), "made": str(want // channels)}  # fmt: skip
        yield "images of another size", {**read, **grew}
    elif layer is not None:
        yield "wrong width", read


def _in_prose(flat: str) -> ast.Module:
    """The layers that are named in a sentence."""
    named = (parsed(text) for text in _NAMED.findall(flat))
    return ast.Module([s for tree in named if tree is not None for s in tree.body], [])


def _into_out(call: ast.Call, tree: ast.AST) -> tuple[float | None, float | None]:
    into = keyword(call, "in_features") or next(iter(call.args), None)
    out = keyword(call, "out_features") or next(iter(call.args[1:]), None)
    return number(into, tree), number(out, tree)


def _made_for(tree: ast.Module, want: int, out: int) -> ast.Call | None:
    """The layer whose weight has these sizes; a layer of the asker's own that is given both numbers too."""
    made = [c for c in below(tree, ast.Call) if len(c.args) + len(c.keywords) >= 2]
    fits = [c for c in made if _into_out(c, tree) == (want, out)]
    return next(iter(sorted(fits, key=lambda c: name_of(c) == "Linear" and len(fits) > 1)), None)


def _channels_of(layer: ast.Call) -> int:
    """The first factor of a product that is written out: `512 * 3 * 5`."""
    into = keyword(layer, "in_features") or next(iter(layer.args), None)
    first = re.match(r"(\d+) \*", ast.unparse(into)) if into is not None else None
    return int(first[1]) if first else 0


def _channels(tree: ast.Module, flat: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A convolution and the channels that it got."""
    match = _CHANNELS.search(flat)
    if match is None:
        return
    shape = [int(n) for n in re.findall(r"\d+", match["shape"])]
    want, have = int(match["want"]), int(match["have"])
    read = {"want": str(want), "have": str(have), "shape": ", ".join(map(str, shape))}
    for call in below(tree, ast.Call):
        sizes = [number(a, tree) for a in call.args[:2]]
        if re.match(r"Conv\dd$", name_of(call)) and sizes == [want, int(match["out"])]:
            read |= at("conv", call)
            yield "convolution of the message", read
            break
    if shape[-1] == want and have != want:
        yield "channels last", read
    elif have == 3 and want == 1:
        yield "colour for grey", read
    elif have == 1 and want == 3:
        yield "grey for colour", read
    elif "conv" in read:
        yield "wrong channels", read


def _columns(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A target that is one column of a table, of shape (N): `criterion(pred, d[:, 2])`."""
    flat = {}
    for statement in below(tree, ast.Assign):
        if _COLUMN.search(value := ast.unparse(statement.value)) and not _RESHAPED.search(value):
            flat[ast.unparse(statement.targets[0])] = statement
    for call in below(tree, ast.Call):
        if not re.search(r"(?i)crit|loss|mse|l1|bce", ast.unparse(call.func)) or len(call.args) < 2:
            continue
        target = ast.unparse(call.args[1])
        if re.search(r"\[(?:\.\.\.|:), ?-?\d+\]$", target) or target in flat:
            yield "column target", at("compared", call, target=target, prediction=ast.unparse(call.args[0]))  # fmt: skip


def _times(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A batch that is cut into time steps for a layer that wants the time first."""
    cells = calls(tree, "LSTM", "GRU", "RNN")
    first = [ast.unparse(keyword(c, "batch_first") or ast.Constant(None)) for c in cells]
    if not cells or "True" in first:
        return
    for call in calls(tree, "view", "reshape"):
        parts = [ast.unparse(a) for a in call.args]
        if len(parts) == 3 and parts[1] == "-1" and parts[0] != "-1" and ".permute" not in ast.unparse(call):  # fmt: skip
            yield "time by reshape", at("cut", call, steps=parts[0], of=ast.unparse(call.func).rpartition(".")[0])  # fmt: skip


def _batches(tree: ast.Module, flat: str) -> Iterator[tuple[str, dict[str, str]]]:
    """More or fewer rows of outputs than labels: a view that cut the batch anew."""
    match = _BATCHES.search(flat)
    if match is None:
        return
    rows, labels = int(match[1]), int(match[2])
    read = {"rows": str(rows), "labels": str(labels)}
    views = [c for c in calls(tree, "view", "reshape") if c.args and ast.unparse(c.args[0]) == "-1" and len(c.args) == 2]  # fmt: skip
    if labels == 0:
        yield "no labels", read
    elif views and rows != labels and (wide := number(views[-1].args[1], tree)):
        right = f"{rows * wide / labels:g}"
        fits = (rows * wide) % labels == 0
        name = "batch cut" if rows > labels else "batch merged"
        if fits:
            yield name, {**read, **at("view", views[-1]), "wide": f"{wide:g}", "right": right}
    yield from _rows(rows, labels, flat, read)


def _rows(rows: int, labels: int, flat: str, read: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:  # fmt: skip
    """What the two numbers of rows say by themselves."""
    apart = abs(rows - labels)
    printed = [tuple(map(int, re.findall(r"\d+", size))) for size in _SIZES.findall(flat)]
    classes = next((s for s in printed if len(s) > 2 and s[:2] == (labels, rows)), None)
    if classes is not None:
        yield "classes for a batch", {**read, "shape": ", ".join(map(str, classes))}
    elif labels and labels % max(rows, 1) == 0 and 1 < labels // max(rows, 1) <= _MANY:
        yield "several labels each", {**read, "each": str(labels // rows)}
    elif apart > 1 and rows % apart == 0 and labels % apart == 0 and 1 < min(rows, labels) // apart < _MANY * 100:  # fmt: skip
        names = {"batch": str(apart), "have": str(rows // apart), "want": str(labels // apart)}
        yield "one step apart", {**read, **names, "longer": "labels" if labels > rows else "outputs"}  # fmt: skip
    elif min(rows, labels) > _PIXELS:
        yield "pixels apart", read


def _targets(flat: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A target of another shape than the output: what the two numbers say about why."""
    match = _TARGET.search(flat)
    if match is None:
        return
    target, output = ([int(n) for n in re.findall(r"\d+", match[k])] for k in ("target", "output"))
    names = _given(text)
    read = {"target": str(target), "output": str(output), "given": names[0], "wanted": names[1]}
    squeezed = [n for n in target if n != 1], [n for n in output if n != 1]
    if squeezed[0] == squeezed[1] and target != output:
        longer = max(target, output, key=len)
        extra = [n for n, size in enumerate(longer) if size == 1 and n > 0]
        yield "one apart", {**read, "dim": str(extra[-1] if extra else 0), "which": names[longer is target], "other": names[longer is not target]}  # fmt: skip
    elif "broadcasting" in flat and prod(target) != prod(output):
        if output[-1:] == [1] and target[:-1] == output[:-1]:
            yield "columns repeated", {**read, "asked": str(target[-1])}
        else:
            yield "counts apart", {**read, "many": str(prod(output)), "few": str(prod(target))}
    elif len(target) == len(output) > 1 and target[1] != output[1]:
        yield "classes apart", {**read, "made": str(output[1]), "asked": str(target[1])}
    elif len(output) == len(target) + 1 == 2 and output[0] == target[0]:
        side = round(output[1] ** 0.5)
        square = side > 2 and side * side == output[1]
        yield ("map of outputs" if square else "classes as columns"), {**read, "n": str(output[1]), "side": str(side)}  # fmt: skip
    elif target and output and target[0] != output[0]:
        yield "batches apart", read


def _given(text: str) -> tuple[str, str]:
    """The names of output and target in the asker's own line of the traceback."""
    own = parsed(read_from(text).get("own", ""))
    for call in below(own, ast.Call) if own is not None else ():
        if len(call.args) == 2 and not any(_is_method(a) for a in call.args):
            return ast.unparse(call.args[0]), ast.unparse(call.args[1])
    return "outputs", "targets"


def _is_method(node: ast.expr) -> bool:
    return ast.unparse(node).startswith(("torch.", "self,"))


def _inside(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """An error below the asker's line that is neither torch's nor theirs: in what that line calls."""
    all_of_it = frames(text[max(0, text.rfind("Traceback (most recent call last)")) :])
    own = [f for f in all_of_it if f.own]
    read = read_from(text)
    if not own or "own" not in read or not all_of_it or all_of_it[-1].own:
        return
    last = all_of_it[-1].file
    called = re.search(r"([A-Za-z_][\w.]*)\(", read["own"].partition("=")[2] or read["own"])
    if called is not None and not re.search(r"[\\/]torch[\\/]", last):
        yield "failed inside", {**read, "called": called[1], "file": re.split(r"[\\/]", last)[-1]}


def _positions(tree: ast.Module, flat: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Cross-entropy over sequences: the classes stand last, and are wanted second."""
    match = re.search(r"Expected target size \[(\d+), (\d+)(?:, \d+)*\], got \[([\d, ]+)\]", flat)
    if match is None:
        return
    given = next((c for c in below(tree, ast.Call) if re.search(r"(?i)crit|loss|entropy", ast.unparse(c.func)) and len(c.args) > 1), None)  # fmt: skip
    names = [ast.unparse(a) for a in given.args[:2]] if given is not None else ["logits", "labels"]
    got = [int(n) for n in match[3].split(",")]
    read = {"batch": match[1], "classes": match[2], "got": match[3], "logits": names[0], "labels": names[1]}  # fmt: skip
    if len(got) == 2 and got[0] == int(match[1]):
        yield "classes last", {**read, "steps": str(got[1])}
    elif len(got) == 1:
        yield "output for each step", read


def _stacked(flat: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Two samples that do not fit into one batch, and what they seem to be."""
    match = _STACKED.search(flat)
    if match is None:
        return
    one, two = ([int(n) for n in re.findall(r"\d+", part)] for part in (match[1], match[3]))
    read = {"one": match[1], "two": match[3], "first": match[2], "second": match[4]}
    if {1, 3, 4} >= {c[0] if len(c) == 3 else 1 for c in (one, two)} and one[-2:] == two[-2:] and len(one + two) > 4:  # fmt: skip
        yield "modes apart", read
    elif len(one) == len(two) > 1 and sorted(one) == sorted(two):
        yield "sides swapped", read
    elif len(one) == len(two) == 3 and one[0] == two[0]:
        yield "images apart", read
    elif len(one) == len(two) == 1:
        yield "lengths apart", {**read, "longer": str(max(*one, *two)), "shorter": str(min(*one, *two))}  # fmt: skip


def _types(flat: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A loss that wants its target in another type, in the names of the asker's line."""
    match = _TYPES.search(flat)
    own = read_from(text)
    if match is None or not re.search(r"loss|entropy", own.get("ran", "")):
        return
    want, have = next((match[w], match[h]) for w, h in ("ab", "dc", "ef") if match[w])
    call = parsed(own.get("own", ""))
    given = [c.args for c in (below(call, ast.Call) if call is not None else []) if len(c.args) > 1]
    if given and (want.lower(), have.lower()) in (("float", "long"), ("long", "float"), ("float", "int"), ("long", "int")):  # fmt: skip
        target = ast.unparse(given[0][-1])
        yield f"{want.lower()} target", {**own, "target": target, "want": want, "have": have}


def _around(flat: str, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What runs around the model, as far as the text names it."""
    if re.search(r"(?i)data ?parallel(?!.{0,40}Distributed)", flat) and not re.search(
        r"(?i)distributed ?data ?parallel", flat
    ):
        yield "several devices", {}
    measuring = [f for f in frames(text) if f.own and MEASURES.match(f.function)]
    if measuring:
        yield "failed in measuring", {"function": measuring[-1].function, "own": measuring[-1].code}
    half = re.search(r"\b(?:torch_)?dtype\s?=\s?torch\.(?:float16|half)\b", flat)
    if half and re.search(r"LoraConfig|Trainer|from_pretrained|\b(?:peft|lora)\b", flat):
        yield "trained in half", {"half": half[0]}
    if re.search(r"(?i)\baccelerat(?:e|or)\b", flat):
        yield "accelerate", {}


def _labels(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Labels that were printed, beside the number of outputs: the largest is too large."""
    if not re.search(r"device-side assert|n_classes|is out of bounds", text):
        return
    columns = {len(re.findall(r"-?\d+\.\d*", row)) for row in _TABLE.findall(text)}
    columns |= {int(n) for n in _OUTPUTS.findall(text)}
    printed = [[int(n) for n in re.findall(r"-?\d+", row)] for row in _WHOLES.findall(text)]
    if len(columns) != 1 or not printed:
        return
    classes, labels = columns.pop(), [n for row in printed for n in row]
    read = {
        "classes": str(classes),
        "last": str(classes - 1),
        "bad": ", ".join(map(str, sorted({n for n in labels if not 0 <= n < classes})[:5])),
        "seen": ", ".join(map(str, sorted(set(labels))[:8])),
        "largest": str(max(labels)),
    }
    yield ("labels beyond" if read["bad"] else "labels within"), read

"""The mistakes that mutations.py puts into real training code: each kind turns right code into one mistake of the catalogue."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

Edit = tuple[
    int, int, list[str]
]  # first line, last line (from 1, inclusive), new text: as many lines


class File:
    """A file, its tree, and what mutations ask of it."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.tree = ast.parse(text)
        self.calls = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call)]
        self.blocks = [
            block
            for node in ast.walk(self.tree)
            for name in ("body", "orelse", "finalbody")
            if isinstance(block := getattr(node, name, None), list)
        ]

    def statements(self, method: str) -> Iterator[tuple[list[ast.stmt], int, str]]:
        """Statements that are one call of a method of this name: the block, the position, the receiver's text."""
        for block in self.blocks:
            for index, statement in enumerate(block):
                call = _called(statement)
                if call is not None and isinstance(call.func, ast.Attribute):
                    if call.func.attr == method:
                        yield block, index, ast.unparse(call.func.value)

    def steps_near(self, statement: ast.stmt) -> bool:
        """Whether the innermost function around a statement, or the script, calls `step`."""
        around: ast.AST = self.tree
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.lineno <= statement.lineno <= (node.end_lineno or 0):
                    around = node
        return ".step(" in ast.unparse(around)

    def is_repeated(self, statement: ast.stmt, receiver: str) -> bool:
        """Whether a statement is in a loop, or in a function that is given its receiver."""
        for node in ast.walk(self.tree):
            match node:
                case ast.For() | ast.While():
                    repeats = True
                case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                    names = {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
                    repeats = receiver.partition(".")[0] in names
                case _:
                    continue
            if repeats and node.lineno < statement.lineno <= (node.end_lineno or 0):
                return True
        return False

    def without(self, statement: ast.stmt) -> Edit:
        """Replace it by `pass`."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        new = [" " * statement.col_offset + "pass"] + [""] * (last - first)
        return first, last, new

    def swapped(self, one: ast.stmt, other: ast.stmt) -> Edit:
        """Two neighbours change places."""
        first, middle = one.lineno, one.end_lineno or one.lineno
        start, last = other.lineno, other.end_lineno or other.lineno
        lines = self.lines
        new = lines[start - 1 : last] + lines[middle : start - 1] + lines[first - 1 : middle]
        return first, last, new

    def replaced(self, node: ast.expr, text: str) -> Edit | None:
        """A part of one line becomes something else."""
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return None
        line = self.lines[node.lineno - 1].encode()
        new = line[: node.col_offset] + text.encode() + line[node.end_col_offset :]
        return node.lineno, node.lineno, [new.decode()]

    def apply(self, edits: list[Edit]) -> str:
        lines = list(self.lines)
        for first, last, new in edits:
            lines[first - 1 : last] = new
        return "\n".join(lines)


def _called(statement: ast.stmt) -> ast.Call | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return statement.value
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        return statement.value
    return None


Mutation = Callable[[File], Iterator[tuple[int, list[Edit]]]]


def zero_grad_removed(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """All clearing of one optimizer."""
    if "backward" not in "\n".join(file.lines):
        return
    by_receiver: dict[str, list[ast.stmt]] = defaultdict(list)
    for block, index, receiver in file.statements("zero_grad"):
        by_receiver[receiver].append(block[index])
    if len(by_receiver) == 1:
        statements = next(iter(by_receiver.values()))
        yield statements[0].lineno, [file.without(s) for s in statements]


def removed(method: str, needs: str = "") -> Mutation:
    """Every statement that calls this method."""

    def mutate(file: File) -> Iterator[tuple[int, list[Edit]]]:
        found = [block[index] for block, index, _ in file.statements(method)]
        if found and needs in "\n".join(file.lines):
            yield found[0].lineno, [file.without(s) for s in found]

    return mutate


def set_epoch_removed(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """What a loop over epochs tells its sampler."""
    found = []
    own = [
        s
        for f in ast.walk(file.tree)
        if isinstance(f, ast.FunctionDef) and f.name == "set_epoch"
        for s in f.body
    ]
    for block, index, receiver in file.statements("set_epoch"):
        call = _called(block[index])
        if call is None or receiver == "self" or block[index] in own:
            continue
        if not call.args or isinstance(call.args[0], ast.Constant):
            continue
        found.append(block[index])
    if found and "DistributedSampler" in "\n".join(file.lines):
        yield found[0].lineno, [file.without(s) for s in found]


def clip_behind_step(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for block, index, _ in file.statements("clip_grad_norm_"):
        after = block[index + 1] if index + 1 < len(block) else None
        if after is not None and _is_step(after):
            yield block[index].lineno, [file.swapped(block[index], after)]


def clip_before_backward(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for block, index, _ in file.statements("clip_grad_norm_"):
        before = block[index - 1] if index else None
        call = _called(before) if before is not None else None
        if call is not None and isinstance(call.func, ast.Attribute):
            if before is not None and call.func.attr == "backward" and file.steps_near(before):
                yield block[index].lineno, [file.swapped(before, block[index])]


def _is_step(statement: ast.stmt) -> bool:
    call = _called(statement)
    return (
        call is not None
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and "opt" in ast.unparse(call).lower()
    )


def scaler_bypassed(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for block, index, receiver in file.statements("step"):
        call = _called(block[index])
        if call is None or "scaler" not in receiver or len(call.args) != 1:
            continue
        edit = file.replaced(call, f"{ast.unparse(call.args[0])}.step()")
        if edit:
            yield call.lineno, [edit]


def cleared_before_step(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`zero_grad()` moves between backward and step."""
    for block, index, receiver in file.statements("zero_grad"):
        for later in block[index + 1 :]:
            call = _called(later)
            if call is None or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr == "step" and ast.unparse(call.func.value) == receiver:
                line = file.lines[later.lineno - 1]
                indent = line[: len(line) - len(line.lstrip())]
                both = f"{indent}{receiver}.zero_grad(); {line.lstrip()}"
                yield (
                    later.lineno,
                    [file.without(block[index]), (later.lineno, later.lineno, [both])],
                )
                break


def division_removed(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`loss = loss / accumulation_steps`, `loss /= k`."""
    for node in ast.walk(file.tree):
        divisor: ast.expr | None = None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            divisor = node.value
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            if isinstance(node.value.op, ast.Div) and ast.unparse(node.targets[0]) == ast.unparse(
                node.value.left
            ):
                divisor = node.value.right
        if divisor is None or not isinstance(node, ast.stmt):
            continue
        named = ast.unparse(divisor).lower()
        if "accum" in named or "grad_acc" in named or "micro" in named:
            yield node.lineno, [file.without(node)]


def recorded_evaluation(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`with torch.no_grad():` around an evaluation goes."""
    if ".eval()" not in "\n".join(file.lines):
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.With) and len(node.items) == 1:
            text = ast.unparse(node.items[0].context_expr)
            loops = [
                n for s in node.body for n in ast.walk(s) if isinstance(n, ast.For | ast.While)
            ]
            called = any("model(" in ast.unparse(s) for loop in loops for s in loop.body)
            if text in ("torch.no_grad()", "torch.inference_mode()") and called:
                # not `enable_grad`: somebody who writes that wants the graph
                line = file.lines[node.lineno - 1]
                if line.strip() == f"with {text}:":
                    yield (
                        node.lineno,
                        [(node.lineno,) * 2 + ([line.replace(line.strip(), "if True:")],)],
                    )


def loss_kept(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`total += loss.item()` keeps the graph."""
    loops = [n for n in ast.walk(file.tree) if isinstance(n, ast.For | ast.While)]
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
            continue
        around = [loop for loop in loops if loop.lineno < node.lineno <= (loop.end_lineno or 0)]
        inner = ast.unparse(max(around, key=lambda loop: loop.lineno)) if around else ""
        if ".backward(" not in inner or ".step(" not in inner:
            continue
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            held = ast.unparse(value.func.value)
            if value.func.attr == "item" and held.rpartition(".")[2].startswith("loss"):
                edit = file.replaced(value, held)
                if edit and "backward" in "\n".join(file.lines):
                    yield node.lineno, [edit]


def eval_kept(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`model.train()` goes where the same file evaluates."""
    evaluated = {receiver for _, _, receiver in file.statements("eval")}
    by_receiver: dict[str, list[ast.stmt]] = defaultdict(list)
    for block, index, receiver in file.statements("train"):
        if receiver in evaluated and file.is_repeated(block[index], receiver):
            by_receiver[receiver].append(block[index])
    for statements in by_receiver.values():
        if "backward" in "\n".join(file.lines):
            yield statements[0].lineno, [file.without(s) for s in statements]


def call_without(name: str, keyword: str) -> Mutation:
    """A keyword goes from the calls of one function."""

    def mutate(file: File) -> Iterator[tuple[int, list[Edit]]]:
        for call in file.calls:
            if ast.unparse(call.func) not in (
                name,
                f"torch.nn.{name}",
                f"nn.functional.{name[2:]}",
            ):
                continue
            rest = [k for k in call.keywords if k.arg != keyword]
            if len(rest) < len(call.keywords):
                text = ast.unparse(ast.Call(call.func, call.args, rest))
                edit = file.replaced(call, text)
                if edit:
                    yield call.lineno, [edit]

    return mutate


def plain_list(file: File) -> Iterator[tuple[int, list[Edit]]]:
    kept = {
        id(n.value)
        for n in ast.walk(file.tree)
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]).startswith("self.")
    }
    for call in (c for c in file.calls if id(c) in kept):
        if ast.unparse(call.func) == "nn.ModuleList" and len(call.args) == 1:
            if isinstance(call.args[0], ast.List | ast.ListComp) and not _stateless(call.args[0]):
                edit = file.replaced(call, ast.unparse(call.args[0]))
                if edit:
                    yield call.lineno, [edit]


def _stateless(held: ast.expr) -> bool:
    """A list of nothing but layers without weights, buffers or a mode."""
    elements = held.elts if isinstance(held, ast.List) else [held.elt]  # type: ignore[attr-defined]
    names = [ast.unparse(e.func) for e in elements if isinstance(e, ast.Call)]
    return bool(names) and all(
        re.search(r"Pool\dd|ReLU|GELU|SiLU|Upsample|Flatten", n) for n in names
    )


def softmax_first(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`criterion(output, target)` where criterion is CrossEntropyLoss gets probabilities."""
    names = {
        ast.unparse(n.targets[0])
        for n in ast.walk(file.tree)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and ast.unparse(n.value.func).endswith("nn.CrossEntropyLoss")
    }
    for call in file.calls:
        if ast.unparse(call.func) in (*names, "F.cross_entropy") and len(call.args) >= 2:
            edit = file.replaced(call.args[0], f"torch.softmax({ast.unparse(call.args[0])}, dim=1)")
            if edit:
                yield call.lineno, [edit]


def from_saved(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The optimizer is no longer restored."""
    text = "\n".join(file.lines)
    if "torch.save" not in text or "torch.load" not in text:
        return
    for block, index, receiver in file.statements("load_state_dict"):
        if "optim" in receiver and "sched" not in receiver:
            yield block[index].lineno, [file.without(block[index])]


def scheduler_first(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for block, index, receiver in file.statements("step"):
        before = block[index - 1] if index else None
        if before is not None and "sched" in receiver and _is_step(before):
            yield block[index].lineno, [file.swapped(before, block[index])]


def windows(file: File) -> Iterator[tuple[list[ast.stmt], int, ast.If]]:
    """The tests of accumulation windows that step an optimizer: the block around each, its position, the test."""
    for block in file.blocks:
        for index, statement in enumerate(block):
            if isinstance(statement, ast.If) and not statement.orelse:
                test = ast.unparse(statement.test).lower()
                if "accum" in test and any(_is_step(s) for s in statement.body):
                    yield block, index, statement


def _is_plain(file: File, statement: ast.stmt) -> bool:
    """Whether it is alone on one line, so that another one can be written beside it."""
    line = file.lines[statement.lineno - 1]
    simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign)
    return simple and statement.lineno == statement.end_lineno and "#" not in line


def clip_before_window(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The clip of a window moves in front of its test: every micro-batch is clipped."""
    for block, index, window in windows(file):
        if not index or not _is_plain(file, block[index - 1]):
            continue
        if "unscale_" in ast.unparse(window):
            continue
        for statement in window.body:
            if ".clip_grad_norm_(" in ast.unparse(statement) and _is_plain(file, statement):
                line = block[index - 1].lineno
                both = (
                    f"{file.lines[line - 1].rstrip()}; {file.lines[statement.lineno - 1].strip()}"
                )
                yield line, [(line, line, [both]), file.without(statement)]


def scheduler_every_micro_batch(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The scheduler of a window moves behind it."""
    for block, index, window in windows(file):
        after = block[index + 1] if index + 1 < len(block) else None
        if after is None or not _is_plain(file, after):
            continue
        for statement in window.body:
            text = ast.unparse(statement)
            if re.fullmatch(r"[\w.]*sched\w*\.step\(\)", text):
                line = file.lines[after.lineno - 1]
                indent = line[: len(line) - len(line.lstrip())]
                both = f"{indent}{text}; {line.lstrip()}"
                yield after.lineno, [file.without(statement), (after.lineno, after.lineno, [both])]


def remainder_dropped(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`or step == len(loader) - 1` goes from the test of a window."""
    for _, _, window in windows(file):
        match window.test:
            case ast.BoolOp(ast.Or(), [first, last]) if "len(" in ast.unparse(last):
                edit = file.replaced(window.test, ast.unparse(first))
                if edit and "%" in ast.unparse(first):
                    yield window.lineno, [edit]


def unscaled_twice(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for block, index, _ in file.statements("unscale_"):
        if _is_plain(file, block[index]):
            line = file.lines[block[index].lineno - 1]
            yield block[index].lineno, [(block[index].lineno,) * 2 + ([f"{line}; {line.strip()}"],)]


def backward_in_autocast(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The backward behind a `with autocast` moves into it."""
    for block, index, _ in file.statements("backward"):
        before = block[index - 1] if index else None
        if not isinstance(before, ast.With) or not _is_plain(file, block[index]):
            continue
        if "autocast(" not in ast.unparse(before.items[0].context_expr):
            continue
        if not any(isinstance(n, ast.Call) for s in before.body for n in ast.walk(s)):
            continue
        line = block[index].lineno
        inner = " " * before.body[0].col_offset + file.lines[line - 1].strip()
        yield line, [(line, line, [inner])]


def always_synchronised(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`with model.no_sync():` goes."""
    for call in file.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "no_sync" and not call.args:
            edit = file.replaced(call, "contextlib.nullcontext()")
            if edit and ast.unparse(call.func.value) != "self":
                yield call.lineno, [edit]


def sampler_dropped(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The DistributedSampler is no longer given to its loader."""
    text = "\n".join(file.lines)
    if "backward(" in text:
        for one in re.findall(r"(\w+) = (?:[\w.]+\.)?DistributedSampler\(", text):
            for call in file.calls:
                if ast.unparse(call.func).endswith("DataLoader"):
                    given = [k for k in call.keywords if k.arg == "sampler"]
                    if given and ast.unparse(given[0].value) == one:
                        edit = file.replaced(given[0].value, "None")
                        if edit:
                            yield call.lineno, [edit]


Kinds = tuple[tuple[str, str, Mutation], ...]
MUTATIONS: Kinds = (
    ("FL101", "the clip moves behind the step", clip_behind_step),
    ("FL102", "the clip moves before the backward", clip_before_backward),
    ("FL103", "the clip moves in front of the test of the window", clip_before_window),
    ("FL104", "the division by the number of micro-batches is removed", division_removed),
    ("FL105", "zero_grad moves between backward and step", cleared_before_step),
    ("FL106", "zero_grad is removed", zero_grad_removed),
    ("FL107", "the window no longer ends with the epoch", remainder_dropped),
    ("FL108", "scheduler.step moves behind the window", scheduler_every_micro_batch),
    ("FL109", "scheduler.step moves before optimizer.step", scheduler_first),
    ("FL201", "unscale_ is removed", removed("unscale_", "clip_grad")),
    ("FL202", "unscale_ is called twice", unscaled_twice),
    ("FL203", "scaler.step(optimizer) becomes optimizer.step()", scaler_bypassed),
    ("FL204", "scaler.update() is removed", removed("update", "scaler.step")),
    ("FL205", "the backward moves into autocast", backward_in_autocast),
    ("FL301", "no_sync is removed", always_synchronised),
    ("FL303", "set_epoch is removed", set_epoch_removed),
    ("FL304", "the loader loses its DistributedSampler", sampler_dropped),
    ("FL401", ".item() is removed from a running sum of losses", loss_kept),
    ("FL402", "no_grad is removed from an evaluation", recorded_evaluation),
    ("FL606", "softmax before cross entropy", softmax_first),
    ("FL702", "the optimizer is not restored", from_saved),
    ("FL801", "ModuleList becomes a plain list", plain_list),
    ("FL804", "model.train() is removed", eval_kept),
    ("FL805", "F.dropout loses training=", call_without("F.dropout", "training")),
)

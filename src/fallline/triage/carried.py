"""What pasted code carries from one pass to the next with its graph, and where it cuts the graph of this one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.syntax.nodes import below, methods_of
from fallline.triage.calls import Facts, at, calls, keyword, name_of, owner_of
from fallline.triage.point import quoted

__all__ = ["MEASURES", "of_carried"]

_CUTS = re.compile(r"\.detach_?\(|\.data\b|no_grad|inference_mode|repackage")
_VALUE = re.compile(r"\.item\(|\.detach\(|\bfloat\(|\bint\(|\.data\b|\.tolist\(|\.cpu\(\)\.numpy|len\(|\.size|\.shape|\.numel")  # fmt: skip
_SCORE = re.compile(r"(?i)metric|dice|iou|ssim|psnr|loss|score|error|cost")
MEASURES = re.compile(r"(?i)^(?:val|valid|validate|validation|evaluate|eval|test|sample|predict|infer\w*|generate)(?:_\w+)?$")  # fmt: skip
_BATCHES = re.compile(r"(?i)load|batch|data|_d[ls]\b|\bd[ls]\b|generator")
_CELLS = re.compile(r"(?i)lstm|rnn|gru|cell|recurrent|encoder|decoder|model|net")
_NEW = frozenset({"tensor", "Tensor", "FloatTensor", "as_tensor", "Variable", "from_numpy"})


def of_carried(tree: ast.Module) -> Facts:
    """All of these facts, each where it is seen first."""
    found: Facts = {}
    text = ast.unparse(tree)
    looks = [_remade(tree), _picked(tree), _stepped(tree), _in_a_cell(tree)]
    if not (_CUTS.search(text) or _begins_anew(tree)):
        looks += [_state_of_modules(tree), _state_of_loops(tree)]
    if not re.search(r"no_grad|inference_mode|set_grad_enabled", text):
        looks += [_added_up(tree), _measured(tree)]
    for look in looks:
        for name, read in look:
            found.setdefault(name, read)
    return found


def _begins_anew(tree: ast.Module) -> bool:
    """Whether a state is made again inside a loop."""
    loops = below(tree, ast.For, ast.While)
    return any(re.search(r"(?i)init|reset|zero_state", name_of(c)) for loop in loops for c in below(loop, ast.Call))  # fmt: skip


def _given_back(statement: ast.Assign) -> Iterator[tuple[str, ast.Call]]:
    """The state in `out, h = cell(x, h)`: a name that is both given to a call and taken from it."""
    match statement.value:
        case ast.Call() as call if _CELLS.search(ast.unparse(call.func)):
            given = {ast.unparse(a) for a in [*call.args, *(k.value for k in call.keywords)]}
            parts = {p for a in given for p in re.findall(r"[A-Za-z_][\w.]*", a)}
            for target in statement.targets:
                for one in below(target, ast.Name, ast.Attribute):
                    name = ast.unparse(one)
                    if name in given or (name in parts and name != "self"):
                        yield name, call


def _state_of_modules(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A module that keeps its hidden state as it is."""
    for cls in below(tree, ast.ClassDef):
        for method in methods_of(cls):
            for statement in below(method, ast.Assign):
                for name, _ in _given_back(statement):
                    if name.startswith("self."):
                        yield "state kept", at("carried", statement, state=name)


def _state_of_loops(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A state that goes from one backward to the next: made before the loop that holds the backward, and given back within it."""
    for loop in below(tree, ast.For, ast.While):
        if not calls(loop, "backward"):
            continue
        fresh = {
            ast.unparse(a.targets[0])
            for a in below(loop, ast.Assign)
            if not any(True for _ in _given_back(a))
        }
        for statement in below(loop, ast.Assign):
            for name, _ in _given_back(statement):
                if name.isidentifier() and name not in fresh and re.search(r"(?i)hid|state|^h\w?$|mem|carry", name):  # fmt: skip
                    yield "state kept", at("carried", statement, state=name)


def _remade(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A loss of numbers: `torch.tensor(values, requires_grad=True)` begins a graph of its own."""
    for call in calls(tree, *_NEW):
        flag = keyword(call, "requires_grad")
        if flag is None or ast.unparse(flag) != "True" or not call.args:
            continue
        inner = ast.unparse(call.args[0])
        if re.fullmatch(r"[A-Za-z_][\w.]*", inner) and not re.match(r"(?i)(?:x|data|inputs?|images?)\b", inner):  # fmt: skip
            yield "loss remade", at("remade", call, values=inner)


def _stepped(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A loss that was computed before a step and is sent back after it."""
    backs = {ast.unparse(c.func).rpartition(".")[0]: c for c in calls(tree, "backward")}
    steps = [c for c in calls(tree, "step") if re.search(r"(?i)opt|solver", ast.unparse(c.func))]
    for name, back in backs.items():
        made = [a for a in below(tree, ast.Assign) for t in a.targets if ast.unparse(t) == name and a.lineno < back.lineno]  # fmt: skip
        between = [s for s in steps if made and made[-1].lineno < s.lineno < back.lineno]
        if between:
            yield (
                "stepped between",
                {
                    **at("loss", made[-1], loss_name=name),
                    **at("step", between[0]),
                    **at("second", back),
                },
            )


def _in_a_cell(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A backward that stands in no loop and no function, as in a notebook, after all that its loss is computed from."""
    inside = {c for outer in below(tree, ast.For, ast.While, ast.FunctionDef) for c in calls(outer, "backward")}  # fmt: skip
    alone = [c for c in calls(tree, "backward") if c not in inside]
    if len(alone) != 1 or inside:
        return
    loss = owner_of(alone[0])
    made = {ast.unparse(t): a for a in tree.body if a.__class__ is ast.Assign for t in below(a, ast.Assign)[0].targets}  # fmt: skip
    if loss not in made:
        return
    read = {n.id for a in made.values() for n in below(a, ast.Name) if n.id not in made}
    given = sorted(read - {"torch", "F", "nn", "np", "optimizer"})[:3]
    yield (
        "backward in a cell",
        {
            **at("backward", alone[0], loss=loss, inputs=", ".join(given) or "its inputs"),
            "made_line": str(made[loss].lineno),
        },
    )


def _picked(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """Where indices are taken of scores: no derivative comes back through them."""
    for call in calls(tree, "argmax"):
        yield "index taken", at("picked", call)
    for subscript in below(tree, ast.Subscript):
        if ast.unparse(subscript.slice) == "1" and re.search(r"\bmax\(.*,", ast.unparse(subscript.value)):  # fmt: skip
            yield "index taken", at("picked", subscript)


def _added_up(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A score of the outputs that is added up with its graph."""
    for loop in below(tree, ast.For):
        if not _BATCHES.search(ast.unparse(loop.iter)):
            continue
        for added in below(loop, ast.AugAssign):
            target, value = ast.unparse(added.target), ast.unparse(added.value)
            outside = any(ast.unparse(b.func).startswith(f"{target}.") for b in calls(tree, "backward"))  # fmt: skip
            plain = _VALUE.search(value) or re.fullmatch(r"[\d.]+", value)
            if _SCORE.search(target) and not plain and not outside and not _is_number(value, tree):
                yield "score added up", at("added", added, value=value, name=target)


def _is_number(name: str, tree: ast.Module) -> bool:
    """Whether a name is given a plain number somewhere, or the result of a function that returns one in its place."""
    given = [a for a in below(tree, ast.Assign) for t in a.targets if name in re.split(r"[\s,()]+", ast.unparse(t))]  # fmt: skip
    for assign in given:
        places = [p.strip() for p in ast.unparse(assign.targets[0]).strip("()").split(",")]
        if _VALUE.search(ast.unparse(assign.value)):
            return True
        match assign.value:
            case ast.Call() as call:
                for made in below(tree, ast.FunctionDef):
                    if made.name == name_of(call) and name in places:
                        returned = [r.value for r in below(made, ast.Return) if r.value is not None]
                        parts = [_parts(r) for r in returned]
                        n = places.index(name)
                        if any(n < len(p) and _VALUE.search(p[n]) for p in parts):
                            return True
    return False


def _parts(value: ast.expr) -> list[str]:
    match value:
        case ast.Tuple(elts=parts):
            return [ast.unparse(p) for p in parts]
    return [ast.unparse(value)]


def _measured(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A function that only measures and runs the network with its graph."""
    for function in below(tree, ast.FunctionDef):
        runs = [c for c in below(function, ast.Call) if c.args and re.match(r"(?:self\.)?\w*(?:model|net|encode\w*|decode\w*|forward)$|self$", ast.unparse(c.func))]  # fmt: skip
        if MEASURES.match(function.name) and runs and not calls(function, "backward"):
            yield (
                "measured with graphs",
                {
                    **at("run", runs[0]),
                    "function": function.name,
                    "function_line": str(function.lineno),
                    "call": quoted(runs[0]),
                },
            )

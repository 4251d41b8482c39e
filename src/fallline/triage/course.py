"""Where a pasted loop updates, and where the way from its loss to the weights is cut."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.syntax.nodes import below, methods_of
from fallline.triage.calls import Facts, at, calls, keyword, name_of, owner_of

__all__ = ["of_course"]

_EPOCHS = re.compile(r"(?i)epoch|^ep$|^e$")
_BATCHES = re.compile(r"(?i)load|batch|iter|enumerate|zip|dl\b|tqdm")
_LOSS = re.compile(r"(?i)crit|loss|entropy|mse|bce|nll|cost|objective")
_ROUNDS = frozenset({"round", "argmax", "sign", "floor", "ceil", "bernoulli", "multinomial", "int", "long", "bool"})  # fmt: skip
_MOVES = frozenset({"to", "cuda", "double", "float", "half", "view", "reshape", "t", "unsqueeze"})
_ACTIVATIONS = frozenset({"ReLU", "LeakyReLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "GELU", "ELU", "SELU", "SiLU", "Flatten", "Softplus", "PReLU"})  # fmt: skip
_OFF = re.compile(r"no_grad|inference_mode")
_DETACHES = re.compile(r"(\.detach\(\)|\.data|\.numpy\(\)|\.item\(\))(?:\.\w+\([^()]*\))*$")
_PLACE = re.compile(r"\[(?!\s*['\"])[^\]]*\]$")
_METHOD = re.compile(r"^(?!requires_grad_|clip_grad|detach_|copy_$)[a-z]\w*_$")
_COUNTED = re.compile(r"(?i)loss|correct|total|acc|count|sum$|batch|dict|state|args|data")
_OPTIONS = frozenset({"inplace", "dim", "negative_slope", "alpha", "beta"})


def of_course(tree: ast.Module) -> Facts:
    """All of these facts, each where it is seen first."""
    found: Facts = {}
    for look in (_after_the_loop, _made_again, _frozen, _rounded, _leaf_moved, _cut, _returns, _given_to_modules, _of_losses, _in_place):  # fmt: skip
        for name, read in look(tree):
            found.setdefault(name, read)
    return found


def _own(loop: ast.For) -> list[ast.stmt]:
    """The statements of a loop that are not in a loop inside it."""
    return [s for s in loop.body if not below(s, ast.For, ast.While)]


def _after_the_loop(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A loop over batches that computes the loss, and an update that comes once after it: indented one level too little."""
    for outer in below(tree, ast.For):
        for inner in outer.body:
            match inner:
                case ast.For() if _BATCHES.search(ast.unparse(inner.iter)):
                    pass
                case _:
                    continue
            if calls(inner, "backward", "step"):
                continue
            later = [s for s in _own(outer) if s.lineno > inner.lineno]
            back = next((c for s in later for c in calls(s, "backward")), None)
            loss = owner_of(back) if back is not None else ""
            made = [a for a in below(inner, ast.Assign) for t in a.targets if ast.unparse(t) == loss]  # fmt: skip
            if back is not None and made and not re.search(rf"\b{re.escape(loss)} \+", ast.unparse(made[-1].value)):  # fmt: skip
                yield "update after the loop", {**at("backward", back), **at("made", made[-1], loss=loss), "loop_line": str(inner.lineno)}  # fmt: skip


def _made_again(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A model, with its optimizer, that is made anew in every epoch."""
    for loop in below(tree, ast.For):
        if not _EPOCHS.search(f"{ast.unparse(loop.target)} {ast.unparse(loop.iter)}") or not calls(loop, "backward"):  # fmt: skip
            continue
        given = {owner_of(c) for c in calls(loop, "parameters")}
        for statement in _own(loop):
            for assign in below(statement, ast.Assign):
                name = ast.unparse(assign.targets[0])
                inner = [c for c in below(assign.value, ast.Call) if re.match(r"[A-Z]", name_of(c))]
                if name in given and inner:
                    yield "model made again", at("model", assign, name=name)
                elif re.search(r"(?i)optim", name) and inner and calls(assign.value, "parameters"):
                    yield "optimizer made again", at("made", assign, name=name)


def _frozen(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """All parameters of a model are frozen after its new layer was put in, and none is released."""
    flags = [a for a in below(tree, ast.Assign) if ast.unparse(a.targets[0]).endswith(".requires_grad")]  # fmt: skip
    if any(ast.unparse(a.value) != "False" for a in flags):
        return
    for loop in below(tree, ast.For):
        whole = re.fullmatch(r"(\w+)\.(?:parameters|named_parameters)\(\)", ast.unparse(loop.iter))
        inside = [a for a in loop.body if a in flags]
        if whole is None or whole[1] == "self" or not inside:
            continue
        heads = [a for a in below(tree, ast.Assign) if ast.unparse(a.targets[0]).startswith(f"{whole[1]}.")]  # fmt: skip
        before = [a for a in heads if a.lineno < loop.lineno]
        if not [a for a in heads if a.lineno > loop.lineno]:
            new = (
                at("head", before[-1], head_name=ast.unparse(before[-1].targets[0]))
                if before
                else {}
            )
            yield ("head frozen too" if before else "all frozen"), {**at("flag", inside[0], name=whole[1]), **new}  # fmt: skip


def _rounded(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A prediction that was rounded or compared goes into the loss."""
    steps = {}
    for statement in below(tree, ast.Assign):
        name, value = ast.unparse(statement.targets[0]), statement.value
        picked = [c for c in below(value, ast.Call) if name_of(c) in _ROUNDS]
        compared = re.search(r"[<>]=? ?[\d.]+\)?(?:\.float\(\)|\.long\(\)|\.int\(\))?$", ast.unparse(value))  # fmt: skip
        steps[name] = statement if picked or compared else None
    for call in below(tree, ast.Call):
        if not _LOSS.search(ast.unparse(call.func)) or len(call.args) < 2:
            continue
        for inner in below(call.args[0], ast.Call):
            if name_of(inner) in _ROUNDS:
                yield "rounded before the loss", {**at("rounded", inner), **at("loss", call)}
        made = steps.get(ast.unparse(call.args[0]))
        if made is not None and made.lineno < call.lineno:
            yield "rounded before the loss", {**at("rounded", made), **at("loss", call)}


def _leaf_moved(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """`torch.randn(3, requires_grad=True).cuda()`: the name stands for what was computed from the leaf."""
    for statement in below(tree, ast.Assign):
        for call in below(statement.value, ast.Call):
            flag = keyword(call, "requires_grad")
            if flag is not None and ast.unparse(flag) == "True" and call is not statement.value:
                yield "leaf moved", at("leaf", statement, name=ast.unparse(statement.targets[0]))


def _cut(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """What is sent backwards was detached by the line that made it, or made under `no_grad`."""
    blocks = [w for w in below(tree, ast.With) if _OFF.search(" ".join(ast.unparse(i.context_expr) for i in w.items))]  # fmt: skip
    for back in calls(tree, "backward"):
        for made in _way_to(back, tree):
            if (how := _DETACHES.search(ast.unparse(made.value))) is not None:
                yield "cut by a line", at("cut", made, how=how[1])
            for block in blocks:
                if made in below(block, ast.Assign) and back not in below(block, ast.Call):
                    heads = ", ".join(ast.unparse(i.context_expr) for i in block.items)
                    name = ast.unparse(made.targets[0])
                    yield "made without gradients", {"block": heads, "block_line": str(block.lineno), "name": name}  # fmt: skip


def _way_to(back: ast.Call, tree: ast.Module) -> list[ast.Assign]:
    """The line that made what is sent backwards, and the one that made its first argument; both in the function of the backward."""
    inside = [f for f in below(tree, ast.FunctionDef) if f.lineno <= back.lineno <= (f.end_lineno or 0)]  # fmt: skip
    home: ast.AST = inside[-1] if inside else tree
    elsewhere = {a for f in below(tree, ast.FunctionDef) if f is not home and not inside for a in below(f, ast.Assign)}  # fmt: skip
    lines = [a for a in below(home, ast.Assign) if a.lineno < back.lineno and a not in elsewhere]

    def last(name: str) -> list[ast.Assign]:
        return [a for a in lines if ast.unparse(a.targets[0]) == name][-1:]

    way = last(owner_of(back).partition(".")[0])
    given = [ast.unparse(c.args[0]) for a in way for c in below(a.value, ast.Call) if c.args][:1]
    return way + [a for name in given for a in last(name)]


def _returns(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """Methods whose value somebody needs, and that return nothing."""
    for cls in below(tree, ast.ClassDef):
        lightning = re.search(r"Lightning|^pl\.|^L\.", " ".join(map(ast.unparse, cls.bases)))
        for method in methods_of(cls):
            body = ast.unparse(method)
            empty = not re.search(r"\breturn \S|\byield\b|\braise\b", body)
            if not empty or "super()" in body or not below(method, ast.Call):
                continue
            read = {"method": method.name, "method_line": str(method.lineno), "cls": cls.name}
            last = next((ast.unparse(a.targets[0]) for a in reversed(below(method, ast.Assign))), "")  # fmt: skip
            read["last"] = last or "..."
            if method.name == "forward":
                yield "forward returns nothing", read
            elif method.name == "configure_optimizers" and lightning:
                yield "optimizers not returned", read
            elif (
                method.name == "training_step"
                and lightning
                and not calls(method, "manual_backward")
            ):
                named = [ast.unparse(t) for a in below(method, ast.Assign) for t in a.targets if "loss" in ast.unparse(t)]  # fmt: skip
                yield "loss not returned", {**read, "last": named[-1] if named else "loss"}


def _given_to_modules(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """An activation that is a module, and is given a tensor where its options go."""
    for call in calls(tree, *_ACTIVATIONS):
        given = call.args[0] if call.args else None
        if given is None or {k.arg for k in call.keywords} - _OPTIONS:
            continue
        text = ast.unparse(given)
        plain = re.fullmatch(r"True|False|-?[\d.e-]+|\w*(?:slope|alpha|dim|inplace)\w*", text)
        inside = any(call in below(m, ast.Call) for c in below(tree, ast.ClassDef) for m in methods_of(c) if m.name != "__init__")  # fmt: skip
        if not plain and inside:
            yield "module given a tensor", at("given", call, kind=ast.unparse(call.func), input=text)  # fmt: skip


def _of_losses(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A loss that is turned round, a loss class that is given tensors, and parameters that are named and not called."""
    likened = re.search(r"(?i)cosine|similar|ssim|dice|elbo|log_?prob|reward", ast.unparse(tree))
    for statement in below(tree, ast.Assign) if likened is None else ():
        match statement.value:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Call() as call) if _LOSS.search(ast.unparse(call.func)) and len(call.args) > 1:  # fmt: skip
                yield "loss negated", at("negated", statement, loss=ast.unparse(call.func))
    for call in below(tree, ast.Call):
        plain = [a for a in call.args if re.fullmatch(r"[A-Za-z_]\w*(?:\[.*\]|\.\w+\(.*\))*", ast.unparse(a))]  # fmt: skip
        if re.match(r"[A-Z]\w*Loss$", name_of(call)) and len(plain) == len(call.args) == 2:
            yield "loss made with tensors", at("made", call, kind=ast.unparse(call.func), given=", ".join(map(ast.unparse, call.args)))  # fmt: skip
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            if ast.unparse(argument).endswith(".parameters"):
                yield "parameters not called", at("optimizer", call, given=ast.unparse(argument))


def _in_place(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of a forward pass that change a tensor where it is: what is written into, then what is added to, then methods that end in `_`."""
    made = sorted(below(tree, ast.FunctionDef), key=lambda f: f.name != "forward")
    scopes: list[ast.AST] = [*made] or [tree]
    into, added, methods = [], [], []
    for function in scopes:
        computed = {ast.unparse(t).partition("[")[0] for a in below(function, ast.Assign) for t in a.targets if below(a.value, ast.Call)}  # fmt: skip
        into += [(a, t) for a in below(function, ast.Assign) for t in a.targets if _PLACE.search(ast.unparse(t)) and _root(t) in computed]  # fmt: skip
        added += [(a, a.target) for a in below(function, ast.AugAssign) if _root(a.target) in computed]  # fmt: skip
        methods += [c for c in below(function, ast.Call) if _METHOD.search(name_of(c)) and owner_of(c) in computed]  # fmt: skip
    for node, target in (*into, *added):
        if not _COUNTED.search(_root(target)):
            yield "written in place", at("written", node, name=_root(target))
    for call in methods:
        yield "written in place", at("written", call, name=owner_of(call))
    for call in below(tree, ast.Call):
        if ast.unparse(keyword(call, "inplace") or ast.Constant(False)) == "True":
            yield "module in place", at("written", call)


def _root(target: ast.expr) -> str:
    return ast.unparse(target).partition("[")[0]

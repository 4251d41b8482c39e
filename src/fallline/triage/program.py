"""What a pasted program is made of, with the names and lines that it uses: its losses, the last operation of its networks, optimizers, loaders, and what its loop does.

None of these facts is a mistake by itself. Together with a symptom ("predicts the same class") some of them are its likely cause (`points/causes.md`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fallline.syntax.nodes import below, is_name, methods_of
from fallline.triage.calls import Facts, at, calls, keyword, kind_of, name_of, number, owner_of
from fallline.triage.pattern import find
from fallline.triage.point import quoted

__all__ = ["facts_of"]

_LOSSES = {
    "crossentropyloss": "ce",
    "cross_entropy": "ce",
    "bceloss": "bce",
    "binary_cross_entropy": "bce",
    "bcewithlogitsloss": "logits",
    "binary_cross_entropy_with_logits": "logits",
    "nllloss": "nll",
    "nll_loss": "nll",
    "mseloss": "mse",
    "mse_loss": "mse",
    "l1loss": "mse",
    "smoothl1loss": "mse",
    "huberloss": "mse",
    "kldivloss": "kl",
    "kl_div": "kl",
}
_ENDS = {
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "softmax2d": "softmax",
    "log_softmax": "log_softmax",
    "logsoftmax": "log_softmax",
    "logsigmoid": "log_softmax",
    "relu": "relu",
    "relu6": "relu",
    "tanh": "tanh",
    "dropout": "dropout",
    "batchnorm1d": "batchnorm",
    "batchnorm2d": "batchnorm",
    "linear": "linear",
    "conv2d": "linear",
}
_PASSES = frozenset({"squeeze", "unsqueeze", "view", "reshape", "flatten", "float", "contiguous", "permute"})  # fmt: skip
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_OPTIMIZER = re.compile(
    r"^(?:SGD|Adam\w*|NAdam|RAdam|RMSprop|Adagrad|Adadelta|Adamax|LBFGS|Lion|AdamW8bit)$"
)
_FAST, _SLOW = 0.01, 1e-6  # rates of Adam that are seldom right
_FAST_TO_TUNE = 3e-4  # the rate of a pretrained transformer is a tenth of this
_FAST_SGD, _SLOW_SGD = 0.5, 1e-3
_NEAR_THE_LIMIT = 0.9  # the mean is not known exactly where values are drawn
_USUAL_MOMENTUM = 0.3
_AUGMENTS = re.compile(r"\bRandom\w+|\bColorJitter|\bTrivialAugment|\bAutoAugment|\bRandAugment")
_TEST = re.compile(r"(?i)(?:^|_)(?:test|val|valid|validation|eval|dev)")
_LINEAR = frozenset({"Linear", "LazyLinear"})


def facts_of(tree: ast.Module) -> Facts:
    """All facts of a program, each where it is seen first."""
    found: Facts = {}
    for look in _LOOKS:
        for name, read in look(tree):
            found.setdefault(name, read)
    return found


def _losses(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    for call in below(tree, ast.Call):
        kind = _LOSSES.get(name_of(call).lower())
        if kind is not None:
            yield f"loss {kind}", at("loss", call)
            if ast.unparse(keyword(call, "reduction") or ast.Constant("")) == "'sum'":
                yield "loss sum", at("summed", call)


def _networks(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """The last operation of each network, and what its layers are."""
    made = {ast.unparse(t): a.value for a in below(tree, ast.Assign) for t in a.targets}
    for cls in below(tree, ast.ClassDef):
        forward = next((m for m in methods_of(cls) if m.name == "forward"), None)  # fmt: skip
        if forward is None:
            continue
        returned = [r for r in below(forward, ast.Return) if r.value is not None]
        if returned and returned[-1].value is not None:
            yield from _end(returned[-1].value, forward, made)
    for call in calls(tree, "Sequential"):
        if call.args and not any(_inside(call, cls) for cls in below(tree, ast.ClassDef)):
            yield from _ended(_last_of(call), call, made)


def _inside(node: ast.AST, outer: ast.AST) -> bool:
    return any(node is n for n in ast.walk(outer))


def _last_of(sequential: ast.Call) -> ast.expr:
    return sequential.args[-1]


def _end(value: ast.expr, forward: ast.FunctionDef, made: dict[str, ast.expr]) -> Iterator[tuple[str, dict[str, str]]]:  # fmt: skip
    """What the returned value was made by, followed through names that are assigned."""
    for _ in range(8):
        if isinstance(value, ast.Name):
            name = value.id
            earlier = [
                a.value
                for a in below(forward, ast.Assign)
                if a.lineno <= value.lineno
                and any(is_name(t, name) for t in a.targets)
                and a.value is not value
            ]
            if not earlier:
                return
            following = earlier[-1]
            if isinstance(following, ast.Name):
                return
            value = following
        elif isinstance(value, ast.Call) and name_of(value) in _PASSES:
            inner = value.func.value if isinstance(value.func, ast.Attribute) else None
            if inner is None or ast.unparse(inner) in ("torch", "F"):
                inner = value.args[0] if value.args else None
            if inner is None:
                return
            value = inner
        else:
            break
    yield from _ended(value, value, made)


def _ended(
    value: ast.expr, shown: ast.expr, made: dict[str, ast.expr], depth: int = 0
) -> Iterator[tuple[str, dict[str, str]]]:
    if not isinstance(value, ast.Call) or depth > 4:
        return
    layer = made.get(ast.unparse(value.func))  # self.fc(x) where self.fc = nn.Linear(...)
    if isinstance(layer, ast.Call):
        if name_of(layer) == "Sequential" and layer.args:
            yield from _ended(_last_of(layer), _last_of(layer), made, depth + 1)
        else:
            yield from _kind(layer, value)
        return
    yield from _kind(value, shown)


def _kind(layer: ast.Call, shown: ast.expr) -> Iterator[tuple[str, dict[str, str]]]:
    kind = _ENDS.get(name_of(layer).lower())
    if kind is None:
        return
    yield f"output {kind}", at("output", shown, layer=quoted(layer))
    inner = layer if name_of(layer) in _LINEAR else next((c for c in calls(shown, *_LINEAR)), None)
    units = inner and (keyword(inner, "out_features") or (inner.args[-1] if inner.args else None))
    if isinstance(units, ast.Constant) and units.value == 1:
        yield "output one", at("output", shown, layer=quoted(layer))


def _one_unit(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """The last linear layer that is made has one output."""
    made = calls(tree, "Linear")
    if made and len(made[-1].args) == 2 and ast.unparse(made[-1].args[1]) == "1":
        yield "one unit", at("unit", made[-1])


def _activations(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    squashing = calls(tree, "sigmoid", "tanh", "Sigmoid", "Tanh")
    if len(squashing) > 1:
        yield "hidden sigmoid", at("squashing", squashing[0])
    for call in calls(tree, "Sequential"):
        for one, two in zip(call.args, call.args[1:], strict=False):
            if {kind_of(one), kind_of(two)} <= _LINEAR:
                yield "linear after linear", {**at("first", one), **at("second", two)}
    named = [f for c in below(tree, ast.ClassDef) for f in methods_of(c) if f.name == "forward"]  # fmt: skip
    made = {ast.unparse(t): a.value for a in below(tree, ast.Assign) for t in a.targets}
    for forward in named:
        linear = [
            c
            for c in below(forward, ast.Call)
            if isinstance(layer := made.get(ast.unparse(c.func)), ast.Call) and name_of(layer) in _LINEAR
        ]  # fmt: skip
        other = [
            c
            for c in below(forward, ast.Call)
            if c not in linear and name_of(c) not in _PASSES | {"size", "cat", "stack", "mean"}
        ]
        if len(linear) > 1 and not other:
            yield "linear after linear", {**at("first", linear[0]), **at("second", linear[-1])}
    for call in calls(tree, "zeros_", "constant_", "ones_", "zero_", "fill_"):
        text = ast.unparse(call)
        if "weight" in text and "bias" not in text and "bn" not in text.lower():
            yield "constant weights", at("constant", call)
    for call in calls(tree, "Dropout", "dropout", "Dropout2d"):
        p = number(keyword(call, "p") or next((a for a in call.args[::-1] if isinstance(a, ast.Constant)), None), tree)  # fmt: skip
        if p is not None and 0.6 <= p <= 1:
            yield "dropout high", at("dropout", call, p=f"{p:g}")


def _depth(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A network of several layers in which nothing is not linear."""
    layers = calls(tree, *_LINEAR)
    if len(layers) < 2 or not (below(tree, ast.ClassDef) or calls(tree, "Sequential")):
        return
    whole = any(m.name == "forward" for m in below(tree, ast.FunctionDef)) or calls(tree, "Sequential")  # fmt: skip
    text = ast.unparse(tree)
    if whole and not re.search(r"(?i)relu|sigmoid|tanh|gelu|elu|silu|swish|mish|softplus|activ|conv|lstm|gru|rnn|attention|transformer|max_?pool|\bsin\(|self\.act|nonlin|from_pretrained|resnet|vgg", text):  # fmt: skip
        yield "nothing but linear", {**at("first", layers[0]), **at("second", layers[1])}


def _tuned(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A pretrained transformer and a rate for networks that begin at random."""
    loaded = [c for c in calls(tree, "from_pretrained") if re.search(r"Model|For\w+|Bert|GPT|T5", owner_of(c))]  # fmt: skip
    if not loaded or re.search(r"(?i)lora|peft|requires_grad = False|adapter", ast.unparse(tree)):
        return
    for call in below(tree, ast.Call):
        rate = number(keyword(call, "lr") or keyword(call, "learning_rate"), tree)
        if rate is not None and rate >= _FAST_TO_TUNE and (name_of(call).startswith("Adam") or "Arguments" in name_of(call)):  # fmt: skip
            yield "rate high to tune", {**at("optimizer", call, rate=f"{rate:g}"), **at("loaded", loaded[0])}  # fmt: skip


def _indices(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A dataset that reads the same place whatever index it is asked for."""
    for function in below(tree, ast.FunctionDef):
        if function.name != "__getitem__" or len(function.args.args) < 2:
            continue
        index = function.args.args[1].arg
        for subscript in below(function, ast.Subscript):
            place = ast.unparse(subscript.slice)
            if ast.unparse(subscript.value).startswith("self.") and re.fullmatch(r"-?\d+", place) and re.search(r"(?i)files?|paths?|data|images?|labels?|samples|items|list|x$|y$", ast.unparse(subscript.value)):  # fmt: skip
                yield "index ignored", at("read", subscript, index=index, right=f"{ast.unparse(subscript.value)}[{index}]")  # fmt: skip


def _optimizers(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    for call in below(tree, ast.Call):
        kind = name_of(call)
        if not _OPTIMIZER.match(kind) or not call.args:
            continue
        rate = keyword(call, "lr") or (call.args[1] if len(call.args) > 1 else None)
        lr = number(rate, tree)
        read = at("optimizer", call, rate="" if lr is None else f"{lr:g}")
        sgd = kind == "SGD"
        yield f"optimizer {'sgd' if sgd else 'adaptive'}", read
        if lr is not None:
            if lr >= (_FAST_SGD if sgd else _FAST):
                yield "rate high", read
            plain = sgd and keyword(call, "momentum") is None
            if (plain and lr <= _SLOW_SGD) or (not plain and lr <= _SLOW):
                yield "rate low", read
        decay = number(keyword(call, "weight_decay"), tree)
        if decay is not None and decay >= (0.05 if kind in ("SGD", "Adam") else 0.5):
            yield "decay high", {**read, "decay": f"{decay:g}"}


def _scales(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """Plain SGD on the squared error of one linear layer: beyond a rate of 2 by the curvature, which the inputs make, every step makes it worse."""
    steps = [c for c in calls(tree, "SGD") if number(keyword(c, "lr"), tree) is not None]
    layers = calls(tree, "Linear")
    if not steps or len(layers) != 1 or not calls(tree, "MSELoss", "mse_loss"):
        return
    rate = number(keyword(steps[0], "lr"), tree) or 0.0
    for statement in below(tree, ast.Assign):
        size = _size_of(statement.value, tree)
        if size is not None:
            limit = 1.0 / (size * size + 1.0)
            if rate > _NEAR_THE_LIMIT * limit:
                yield "inputs large", {**at("optimizer", steps[0], rate=f"{rate:g}", limit=f"{limit:.2g}", safe=f"{limit / 3:.1g}", size=f"{size:.0f}"), **at("inputs", statement, name=ast.unparse(statement.targets[0]))}  # fmt: skip
            return


def _size_of(value: ast.expr, tree: ast.Module) -> float | None:
    """The root of the mean square of a tensor whose numbers are written out, or that is drawn and multiplied."""
    match value:
        case ast.BinOp(left=ast.Call() as drawn, op=ast.Mult(), right=by) if name_of(drawn) in ("randn", "rand"):  # fmt: skip
            times = number(by, tree)
            return None if times is None else abs(times) * (1.0 if name_of(drawn) == "randn" else 3**-0.5)  # fmt: skip
        case ast.Call() as call if (
            name_of(call) in ("tensor", "Tensor", "FloatTensor") and call.args
        ):
            written = [number(c, tree) or 0.0 for c in below(call.args[0], ast.Constant)]
            return (sum(n * n for n in written) / len(written)) ** 0.5 if len(written) > 2 else None
    return None


def _loaders(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    text = ast.unparse(tree)
    for statement in below(tree, ast.Assign):
        call, target = statement.value, ast.unparse(statement.targets[0])
        if not isinstance(call, ast.Call) or name_of(call) != "DataLoader":
            continue
        test = _TEST.search(target) is not None
        shuffles = keyword(call, "shuffle")
        off = shuffles is None or ast.unparse(shuffles) == "False"
        whole = any(k.arg is None for k in call.keywords)
        if (
            not test
            and off
            and not whole
            and not {"sampler", "batch_sampler"} & {k.arg for k in call.keywords}
        ):
            yield "not shuffled", at("loader", call, name=target)
        if number(keyword(call, "batch_size"), tree) in (1.0, None) and not whole and "BatchNorm" in text:  # fmt: skip
            if keyword(call, "batch_size") is None and len(call.args) < 2:
                yield "batch one", at("loader", call)
        if number(keyword(call, "num_workers"), tree) in (None, 0.0) and not whole:
            yield "no workers", at("loader", call, name=target)
    if "ToTensor" in text and "Normalize" not in text:
        yield "not normalised", at("transform", calls(tree, "ToTensor")[0]) if calls(tree, "ToTensor") else {}  # fmt: skip
    for statement in below(tree, ast.Assign):
        target = ast.unparse(statement.targets[0])
        if _TEST.search(target) and _AUGMENTS.search(ast.unparse(statement.value)):
            yield "validation augmented", at("augmented", statement, name=target)
    fitted = calls(tree, "fit_transform")
    if len(fitted) > 1 and len({owner_of(c) for c in fitted}) == 1:
        yield "scaler fitted twice", at("fitted", fitted[-1])


def _predictions(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """How classes are taken from outputs."""
    for call in calls(tree, "argmax", "max", "topk"):
        owner = owner_of(call) in ("torch", "np")
        dim = keyword(call, "dim") or keyword(call, "axis")
        dim = dim or next(iter(call.args[1 if owner else 0 :]), None)
        of = call.args[0] if owner and call.args else getattr(call.func, "value", None)
        flat = of is None or re.search(r"\[|squeeze|view|flatten", ast.unparse(of)) is not None
        if isinstance(dim, ast.Constant) and dim.value == 0 and type(dim.value) is int and not flat:
            yield "argmax over the batch", at("argmax", call)
    text = ast.unparse(tree)
    if re.search(r"(?i)sigmoid", text) is None:
        for call in calls(tree, "round"):
            if call.args or isinstance(call.func, ast.Attribute):
                yield "rounded logits", at("rounded", call)
        for compare in below(tree, ast.Compare):
            if ast.unparse(compare.comparators[0]) == "0.5" and re.search(
                r"(?i)out|pred|logit|y_hat", ast.unparse(compare.left)
            ):
                yield "rounded logits", at("rounded", compare)
    for node in below(tree, ast.Assign):
        value = node.value
        if (
            isinstance(value, ast.Call)
            and name_of(value) in ("randint", "rand", "randn")
            and re.search(
                r"(?i)^(?:y|labels?|targets?|y_train|train_y|train_labels)$",
                ast.unparse(node.targets[0]),
            )
        ):
            yield "labels random", at("random", node)


def _normalisations(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """BatchNorm with a momentum of its own."""
    for call in below(tree, ast.Call):
        given = keyword(call, "momentum") if name_of(call).startswith("BatchNorm") else None
        if given is None:
            continue
        value = number(given, tree)
        if value is None or value > _USUAL_MOMENTUM:
            yield "batchnorm momentum", at("norm", call, momentum=quoted(given))


def _recurrent(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    for call in below(tree, ast.Call):
        if name_of(call) not in _RECURRENT or owner_of(call).startswith("self"):
            continue  # `self.LSTM(x)` calls a layer of that name
        first = keyword(call, "batch_first")
        batch_first = first is not None and ast.unparse(first) == "True"
        yield "recurrent", at("recurrent", call)
        if ast.unparse(keyword(call, "bidirectional") or ast.Constant(None)) == "True":
            yield "bidirectional", at("recurrent", call)
        for subscript in below(tree, ast.Subscript):
            index, of = ast.unparse(subscript.slice), ast.unparse(subscript.value)
            if not re.search(r"(?i)out|lstm|rnn|gru|^x$|^r$|^o$", of):
                continue
            if not batch_first and re.match(r"\(?:, -1(?:, :)?\)?$", index):
                yield "last of the wrong axis", {**at("taken", subscript), **at("recurrent", call)}  # fmt: skip
            if batch_first and index == "-1" and re.search(r"(?i)out", of):
                yield "last sample", {**at("taken", subscript), **at("recurrent", call)}
    if not calls(tree, "clip_grad_norm_", "clip_grad_value_"):
        for call in calls(tree, "backward")[:1]:
            yield "no clipping", at("backward", call)


def _loops(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """What a loop does beside the update."""
    for call in calls(tree, "backward"):
        if ast.unparse(keyword(call, "retain_graph") or ast.Constant(None)) == "True":
            yield "graph kept", at("kept", call)
        if ast.unparse(keyword(call, "create_graph") or ast.Constant(None)) == "True":
            yield "graph made", at("kept", call)
    for call in calls(tree, "set_detect_anomaly", "detect_anomaly"):
        yield "anomaly mode", at("anomaly", call)
    loops = below(tree, ast.For)
    for loop in loops:
        outside = [b for b in calls(tree, "backward") if b.lineno > (loop.end_lineno or 0)]
        for added in below(loop, ast.AugAssign):
            target = ast.unparse(added.target)
            if isinstance(added.op, ast.Add) and any(ast.unparse(b.func).startswith(f"{target}.") for b in outside):  # fmt: skip
                yield "losses added up", at("added", added, name=target, end=str(outside[0].lineno))  # fmt: skip
        counted = ast.unparse(loop.iter)
        for call in below(loop, ast.Call):
            indexed = any(isinstance(a, ast.Subscript) and ast.unparse(a.slice) == ast.unparse(loop.target) for a in call.args)  # fmt: skip
            if "batch" in counted and indexed and isinstance(call.func, ast.Name):
                yield "sample by sample", at("single", call, loop_line=str(loop.lineno))
    evaluates = calls(tree, "eval")
    if evaluates and not calls(tree, "no_grad", "inference_mode", "set_grad_enabled"):
        yield "graphs in evaluation", at("evaluation", evaluates[0])
    if not evaluates and re.search(r"Dropout|BatchNorm", ast.unparse(tree)) and calls(tree, "no_grad", "argmax"):  # fmt: skip
        where = calls(tree, "no_grad") or calls(tree, "argmax")
        yield "never in evaluation mode", at("evaluated", where[0])
    for loop in loops:
        inner = [s for s in loop.body if isinstance(s, ast.For)]
        for statement in loop.body:
            printed = isinstance(statement, ast.Expr) and "print(" in ast.unparse(statement)
            if printed and inner and re.search(r"\bloss\.item\(\)|\{loss\b|, loss\b", ast.unparse(statement)):  # fmt: skip
                yield "last batch printed", at("printed", statement)
    for call in calls(tree, "half"):
        if isinstance(call.func, ast.Attribute) and re.search(r"(?i)model|net", owner_of(call)):
            yield "half weights", at("half", call)
    for statement in below(tree, ast.Assign):
        value = statement.value
        if isinstance(value, ast.Call) and name_of(value) == "state_dict" and re.search(r"(?i)best", ast.unparse(statement.targets[0])):  # fmt: skip
            yield "best is an alias", at("alias", statement)
    seen = next(find("torch.manual_seed(A)", tree), None)
    if seen is None:
        yield "no seed", {}


def _never_updated(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A loop over batches that computes a loss, and nothing that learns from it."""
    updates = calls(tree, "backward", "step", "fit", "train_step", "manual_backward", "grad")
    for loop in [] if updates else below(tree, ast.For):
        batches = re.search(r"(?i)load|batch", ast.unparse(loop.iter))
        losses = [a for a in below(loop, ast.Assign) if re.search(r"(?i)loss", ast.unparse(a.targets[0]))]  # fmt: skip
        if batches and losses:
            yield "no update", at("lost", losses[-1], loop_line=str(loop.lineno))


def _leaves(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """What is made to require a gradient so that an error goes away."""
    for statement in below(tree, ast.Assign):
        target = ast.unparse(statement.targets[0])
        if target.endswith(".requires_grad") and ast.unparse(statement.value) == "True":
            what = target.removesuffix(".requires_grad")
            if re.search(r"(?i)loss", what):
                yield "loss made a leaf", at("leaf", statement, what=what)
            elif re.search(r"(?i)ids|tokens|input|data|x$|images?|audio|batch", what):
                yield "input made a leaf", at("leaf", statement, what=what)
    for call in calls(tree, "requires_grad_"):
        if re.search(r"(?i)loss", owner_of(call)):
            yield "loss made a leaf", at("leaf", call, what=owner_of(call))


def _in_order(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """The update, where all of it is there."""
    clear, back, step = (calls(tree, n)[:1] for n in ("zero_grad", "backward", "step"))
    if clear and back and step:
        whole = sorted([*clear, *back, *step], key=lambda c: c.lineno)
        yield "update whole", {"update": ", ".join(f"`{quoted(c)}`" for c in whole)}


_LOOKS: tuple[Callable[[ast.Module], Iterator[tuple[str, dict[str, str]]]], ...] = (
    _losses,
    _networks,
    _one_unit,
    _activations,
    _optimizers,
    _scales,
    _depth,
    _tuned,
    _indices,
    _loaders,
    _predictions,
    _normalisations,
    _recurrent,
    _loops,
    _never_updated,
    _leaves,
    _in_order,
)

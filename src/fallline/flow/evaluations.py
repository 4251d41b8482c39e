"""Loops that evaluate a model, in files that train it and never put it into eval mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.modes import made_has_mode
from fallline.flow.ranks import called_functions
from fallline.flow.recording import turns_off
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, written

__all__ = ["never_in_eval_mode", "trained_whatever_it_is_told"]

_STEPS = re.compile(r"\.step\(")
# Somebody chooses a mode here in a way that does not say whose, or modes are said to be someone else's business.
_CHOOSES = re.compile(
    r"(self|model|module|net)\.training\b|\.training\s*=|(set|toggle|switch)_(train|eval|mode)|eval_mode|train_mode|LightningModule|"
    r"\b(model|net|network|module|classifier)\.(eval|train)\b(?!\()|getattr\([^()]+,\s*['\"](eval|train)"
)
_EVALUATES = re.compile(
    r"(^|_|gen|data|loader)(eval|evaluate|evaluation|valid|validate|validation|val|test)(_|$|data|gen|iter|(?i:loader|set|dl))",
    re.I,
)
_TRAINING = re.compile(r"train|monte|mc_|uncertain|ensemble|calibrat", re.I)
_MODEL = re.compile(r"(^|_)(model|net|network|classifier)$")


def never_in_eval_mode(module: Module) -> Iterator[tuple[ast.For | ast.Call, bool]]:
    """Each such loop, and each call that hands a model to one, and whether the model is seen to have layers that are different in eval mode."""
    text = module.source.text
    if ".backward(" not in text or not _STEPS.search(text) or _CHOOSES.search(text):
        return
    chosen = _modes_chosen(module)
    if chosen is None:
        return
    for loop in module.all(ast.For):
        model = _evaluated(module, loop, chosen)
        if (
            model is None
            or not _is_run_here(module, loop)
            or _rests_at_its_callers(module, model, chosen)
        ):
            continue
        has_mode = _has_mode(module, model)
        # a file that never says train() either may leave both to whoever calls it, unless it trains and evaluates in one function
        if has_mode is True or (
            has_mode is None and (".train()" in text or _between_updates(module, loop))
        ):
            yield loop, has_mode is True
    if ".train()" in text:
        for call in _handed_over(module, chosen):
            yield call, False


def _rests_at_its_callers(module: Module, model: ast.expr, chosen: set[str]) -> bool:
    """`def test(loader, model)`, called as `test(loader, network)` with a network that this file puts into eval mode."""
    function = module.function(model)
    if not isinstance(function, ast.FunctionDef) or not isinstance(model, ast.Name):
        return False
    places = [a.arg for a in function.args.args]
    if model.id not in places:
        return False
    at = places.index(model.id)
    for call in module.all(ast.Call):
        given = [k.value for k in call.keywords if k.arg == model.id] or call.args[at : at + 1]
        if last_name(call) == function.name and any(last_name(g) in chosen for g in given):
            return True
    return False


def _between_updates(module: Module, loop: ast.For) -> bool:
    """The loop around it trains as well: nobody else gets to set the mode in between."""
    around = (up for up in module.parents(loop) if isinstance(up, ast.For | ast.While))
    return any(
        last_name(c) == "backward" and module.function(c) is module.function(loop)
        for up in around
        for c in below(up, ast.Call)
    )


def _handed_over(module: Module, chosen: set[str]) -> Iterator[ast.Call]:
    """`test_loss = measure(net, self.test_loader)` in a loop that trains, of a function in view that sets no mode either."""
    for call in module.all(ast.Call):
        given = [written(a) for a in call.args if isinstance(a, ast.Name | ast.Attribute)]
        over = [g for g in given if _EVALUATES.search(g) and not _TRAINING.search(g)]
        walked = {
            g for g in given if g not in over and _is_run_and_walked(module, call, g)
        } - chosen
        if not over or not walked:
            continue
        for home, function in called_functions(module, call):
            inside = home.segment(function)
            loops = below(function, ast.For)
            if loops and not re.search(r"eval\(|\.train\(|backward|mode", inside):
                yield call
                break


def _is_run_and_walked(module: Module, call: ast.Call, model: str) -> bool:
    """The loop around this call runs that model and walks back."""
    for up in module.parents(call):
        if isinstance(up, ast.For | ast.While):
            inside = below(up, ast.Call)
            runs = any(
                written(c.func) in {model, f"{model}.forward", f"{model}.module"} and c.args
                for c in inside
            )
            if runs and any(last_name(c) == "backward" for c in inside):
                return True
    return False


_TOLD = re.compile(r"(is_)?(train(ing)?|val(id(ation)?)?|eval(uat(e|ing|ion))?|test(ing)?)(_mode)?")


def trained_whatever_it_is_told(module: Module) -> Iterator[ast.Call]:
    """`def step(self, batch, validation=False): self.model.train()`: it walks back only if it is to train, and is in train mode either way."""
    for call in module.method_calls("train"):
        function = module.function(call)
        if not isinstance(function, ast.FunctionDef) or call.args or call.keywords:
            continue
        asked = [
            a.arg
            for a in (*function.args.args, *function.args.kwonlyargs)
            if _TOLD.fullmatch(a.arg)
        ]
        statement = module.statement(call)
        if not asked or statement not in function.body:
            continue
        assert isinstance(call.func, ast.Attribute)
        model = written(call.func.value)
        calls = below(function, ast.Call)
        walks = [c for c in calls if last_name(c) == "backward"]
        if not walks or not all(_depends_on(module, w, function, asked) for w in walks):
            continue
        runs = [c for c in calls if written(c.func) == model and c.args]
        rests = [c.lineno for c in calls if last_name(c) == "eval"]
        if any(
            r.lineno > call.lineno
            and not _depends_on(module, r, function, asked)
            and not any(line < r.lineno for line in rests)
            for r in runs
        ):
            yield call


def _depends_on(module: Module, node: ast.AST, function: ast.FunctionDef, asked: list[str]) -> bool:
    """Under a test of one of these arguments, or after a return under one."""
    for up in module.parents(node):
        if up is function:
            break
        if isinstance(up, ast.If | ast.IfExp):
            if any(n.id in asked for n in below(up.test, ast.Name)):
                return True
    line = getattr(node, "lineno", 0)
    return any(
        isinstance(s, ast.If)
        and s.lineno < line
        and isinstance(s.body[-1], ast.Return)
        and any(n.id in asked for n in below(s.test, ast.Name))
        for s in function.body
    )


def _modes_chosen(module: Module) -> set[str] | None:
    """The names of the models that this file puts into eval mode; None where it cannot be seen which these are."""
    found: set[str] = set()
    for call in (*module.method_calls("eval"), *module.method_calls("train")):
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "train" and not call.args + call.keywords:
            continue
        if _is_own_method(module, call.func):
            continue
        named = {
            n.id if isinstance(n, ast.Name) else n.attr
            for n in below(call.func.value, ast.Name, ast.Attribute)
        }
        if named <= {"self", "m", "module", "layer"} or _goes_over(module, call.func.value):
            return None
        found |= named
    return found


def _is_own_method(module: Module, func: ast.Attribute) -> bool:
    """`self.train(loader)` of a trainer: its loop, and no mode."""
    cls = module.class_(func)
    if not is_name(func.value, "self") or cls is None or module.is_module_class(cls):
        return False
    return any(m.name == func.attr for m in methods_of(cls))


def _goes_over(module: Module, receiver: ast.expr) -> bool:
    """`for net in nets: net.eval()`: which ones is not said by the name."""
    if isinstance(receiver, ast.Subscript):
        return True
    return isinstance(receiver, ast.Name) and any(
        isinstance(module.parent(b), ast.For | ast.comprehension | ast.Tuple)
        for b in module.bindings(receiver.id, module.scope(receiver))
    )


def _evaluated(module: Module, loop: ast.For, chosen: set[str]) -> ast.expr | None:
    """The model that a loop over data for evaluation calls, without a backward; not one whose mode is chosen."""
    calls = below(loop, ast.Call)
    if any(last_name(c) in {"backward", "step"} for c in calls):
        return None
    function = module.function(loop)
    named = function.name if function is not None else ""
    over = [
        n.id if isinstance(n, ast.Name) else n.attr
        for n in below(loop.iter, ast.Name, ast.Attribute)
    ]
    by_data = any(_EVALUATES.search(n) and not _TRAINING.search(n) for n in over)
    by_name = _EVALUATES.search(named) and not _TRAINING.search(named)
    if not by_data and not (by_name and _without_gradient(module, loop)):
        return None
    return _model_called(calls, chosen) or _called_by_helper(module, calls, chosen)


def _model_called(calls: list[ast.Call], chosen: set[str]) -> ast.expr | None:
    models = (c.func for c in calls if c.args + c.keywords and _MODEL.search(_called(c)))
    return next((m for m in models if last_name(m) not in chosen), None)


def _called_by_helper(module: Module, calls: list[ast.Call], chosen: set[str]) -> ast.expr | None:
    """`self._forward_pass(batch)`: the model that a method of the same class calls, without a backward."""
    for call in calls:
        match call.func:
            case ast.Attribute(ast.Name("self"), name):
                cls = module.class_(call)
                owner = module.qualname(cls) if cls is not None else ""
                helper = module.functions.get(f"{owner}.{name}")
            case _:
                continue
        inside = below(helper, ast.Call) if helper is not None else []
        model = _model_called(inside, chosen)
        if model is not None and not any(last_name(c) in {"backward", "step"} for c in inside):
            return model
    return None


def _called(call: ast.Call) -> str:
    """`model` of `model(x)`, of `self.model(x)` and of `args.model(x)`."""
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name(), name):
            return name
    return ""


def _without_gradient(module: Module, node: ast.AST) -> bool:
    return any(map(turns_off, (node, *module.parents(node), *below(node, ast.With))))


def _is_run_here(module: Module, loop: ast.For) -> bool:
    """In a function that this file calls, or that trains itself, or outside all of them: who sets the mode is in view."""
    function = module.function(loop)
    if not isinstance(function, ast.FunctionDef):
        return function is None
    trains = any(last_name(c) == "backward" for c in below(function, ast.Call))
    return (
        trains or bool(values_of(module).calls_of(function)) or _nobody_sees_to_it(module, function)
    )


def _nobody_sees_to_it(module: Module, function: ast.FunctionDef) -> bool:
    """The files that name this function put no model to rest, nor does this one, which trains under the same name."""
    if ".train()" not in module.source.text or module.project is None:
        return False
    cls = module.class_(function)
    if cls is not None and cls.bases:
        return False
    others = module.project.beside(module, function.name.encode())
    return not any(re.search(r"\.eval\(\)", other.source.text) for other in others)


def _has_mode(module: Module, model: ast.expr) -> bool | None:
    """Through the calls of this file: `validate(loader, model)` is given what `main` made."""
    made = values_of(module).constructed(model)
    if made is None:
        made = _given(module, model)
    return made_has_mode(module, made) if made is not None else None


def _given(module: Module, model: ast.expr) -> ast.Call | None:
    """What the one call of this file hands over under a parameter's name."""
    function = module.function(model)
    if not isinstance(model, ast.Name) or not isinstance(function, ast.FunctionDef):
        return None
    names = [a.arg for a in function.args.args]
    if model.id not in names:
        return None
    for call in values_of(module).calls_of(function):
        given = Module.argument(call, names.index(model.id), model.id)
        made = values_of(module).built(given) if given is not None else None
        if isinstance(made, ast.Call):
            return made
    return None

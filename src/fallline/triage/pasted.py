"""What was pasted into a question and what was said in it: code without fences, fragments of a loop whose head or end was not pasted, tracebacks and logs."""

from __future__ import annotations

import ast
import re
import textwrap

from fallline.syntax.nodes import below
from fallline.triage.logs import log_lines

__all__ = [
    "cut_off",
    "end_of_update",
    "in_a_loop",
    "parsed",
    "pieces",
    "printed",
    "said",
    "unfenced",
]

_WORDS = r"(?:import|from|def|class|return|with|for|while|if|elif|else|try|except|@\w)\b[^\n]*[:\w)]\s*(?:#.*)?$"
_STATEMENT = re.compile(
    rf"\s*(?:{_WORDS}|[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=]|[A-Za-z_][\w.]*\(|\(\w)"
)
_QUOTED = re.compile(r"(?<!`)`([^`\n]*[(=][^`\n]*)`(?!`)")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_CALLS = re.compile(r"(?:[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=].*[(./*]|[A-Za-z_]\w*\.[\w.]+\()")
_FEWEST = 3  # fewer lines may be prose, or one line of a traceback
_LOOKED_AT = 20_000
# lines that a program printed: frames of a traceback and the code below them, bars of nvidia-smi, progress, time stamps
_FRAME = re.compile(
    r'\s*(?:\[?rank ?\d+\]?:)?\s*(?:File "|Traceback \(most recent|During handling of|The above exception|warnings\.warn\()'
)
_PRINTED = re.compile(
    r"\s*(?:[|+]\s*[-=|+]|\|.*\|\s*$|[-=*_#~]{5,}|.*\d+%\|.*\|\s*\d+/\d+|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\d\d:\d\d:\d\d\b|\[\s*INFO\b|INFO:|WARNING:|\{['\"](?:loss|eval_|train_)|>>> |\$ )"
)
_FEW_WORDS = 3  # a question of which less than this is left was only pasted
# what a whole script has in view: a step, a trainer that steps, or the optimizer that somebody steps
_STEPS = re.compile(r"(?i)step|^fit$|trainer|^(adam|adamw|sgd|rmsprop|adagrad|lbfgs)$")


def unfenced(question: str) -> str:
    """The longest run of lines that look like statements, where it parses as Python; else nothing."""
    if _only_code(question[:_LOOKED_AT]):
        return question[:_LOOKED_AT].rstrip()
    runs: list[list[str]] = [[]]
    for line in question[:_LOOKED_AT].splitlines():
        if _STATEMENT.match(line) or (runs[-1] and (line[:1].isspace() or not line.strip())):
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    if sum(bool(line.strip()) for line in longest) < _FEWEST:
        return ""
    text = "\n".join(longest)
    return text.rstrip() if parsed(text) is not None else ""


def pieces(text: str, read: str) -> ast.Module:
    """All Python in a question, statement by statement: the code that was read, or those of its lines that parse; what is quoted in backticks; and single lines in prose that can be nothing but code."""
    body: list[ast.stmt] = []
    for source in (read, *_QUOTED.findall(text), *_lines_of_code(text)):
        if (tree := parsed(source)) is not None:
            body += tree.body
        elif "\n" in source:
            lines = (parsed(line.strip().removesuffix(":")) for line in source.splitlines())
            body += [statement for tree in lines if tree is not None for statement in tree.body]
    return ast.Module(body, [])


def _lines_of_code(text: str) -> list[str]:
    """Lines outside fences that assign what a call returns, or call a method."""
    prose = _FENCED.sub("", text[:_LOOKED_AT])
    return [line.strip() for line in prose.splitlines() if _CALLS.match(line.strip())]


def said(text: str) -> str:
    """What a person wrote in a text without code: not the frames of a traceback, nor lines of a log. All of it where that is nearly nothing."""
    lines = text.splitlines()
    by_program = _by_program(lines)
    left = "\n".join(line for n, line in enumerate(lines) if n not in by_program)
    return left if len(re.findall(r"[^\W\d]{2,}", left)) >= _FEW_WORDS else text


def printed(block: str) -> bool:
    """Whether a fenced block is what a program printed, not a program."""
    lines = block.splitlines()
    return 2 * len(_by_program(lines)) > len(lines) and parsed(block) is None


def _by_program(lines: list[str]) -> set[int]:
    """Which lines a program printed."""
    found = log_lines(lines)
    frame = False
    for n, line in enumerate(lines):
        below_frame = frame and line[:1].isspace()
        frame = _FRAME.match(line) is not None
        if frame or below_frame or _PRINTED.match(line):
            found.add(n)
    return found


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _only_code(question: str) -> bool:
    """Whether a question is nothing but Python, of however few lines. `loss = nan` also parses: only a method called or an attribute set is code."""
    if "." not in question or (tree := parsed(question)) is None:
        return False
    return any(
        (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
        for node in ast.walk(tree)
    )


def in_a_loop(code: str) -> str:
    """The head of the loop that a fragment is the inside of: it calls `backward` or a `step`, and neither loops nor defines anything. Nothing for other code."""
    tree = parsed(code)
    if tree is None or below(tree, ast.For, ast.While, ast.FunctionDef, ast.ClassDef):
        return ""
    called = {
        node.func.attr for node in below(tree, ast.Call) if isinstance(node.func, ast.Attribute)
    }
    if not called & {"backward", "step"}:
        return ""
    counted = next((left for left in _counted(tree)), "_")
    return f"for {counted}, batch in enumerate(loader):"


def cut_off(code: str) -> bool:
    """Whether an excerpt shows no whole update: nothing in it steps, or `...` stands for what was left out."""
    tree = parsed(code)
    if tree is None:
        return False
    left_out = any(
        isinstance(node.value, ast.Constant) and node.value.value is ...
        for node in below(tree, ast.Expr)
    )
    return left_out or not any(_STEPS.search(name) for name, _ in _called(tree))


def end_of_update(code: str) -> str:
    """The usual end of an update, for an excerpt that stops between its backward and its step; nothing for other code. A mistake that is gone with it was only the cut."""
    tree = parsed(code)
    if tree is None or any(_STEPS.search(name) for name, _ in _called(tree)):
        return ""
    block = _block_of_backward(tree.body)
    if not block or isinstance(block[-1], ast.Return):
        return ""
    owners = {name: owner for name, owner in _called(tree) if owner}
    optimizer = next((ast.unparse(c.args[0]) for c in below(tree, ast.Call) if _name(c) == "unscale_" and c.args), "optimizer")  # fmt: skip
    scaler = owners.get("scale")
    steps = [f"{scaler}.step({optimizer})", f"{scaler}.update()"] if scaler else [f"{optimizer}.step()"]  # fmt: skip
    clears = [] if "zero_grad" in owners else [f"{optimizer}.zero_grad()"]
    margin = " " * block[-1].col_offset
    return "".join(f"\n{margin}{line}" for line in [*steps, *clears])


def _block_of_backward(body: list[ast.stmt]) -> list[ast.stmt]:
    """The innermost body of a loop or function that ends the excerpt and holds its backward."""
    if not any(_name(c) == "backward" for statement in body for c in below(statement, ast.Call)):
        return []
    last = body[-1]
    if isinstance(last, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
        return _block_of_backward(last.body)
    return [] if any(isinstance(s, ast.For | ast.While) and _block_of_backward(s.body) for s in body) else body  # fmt: skip


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _called(tree: ast.AST) -> list[tuple[str, str]]:
    """Each function or method that is called, with what it is a method of."""
    return [
        (_name(call), ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else "")
        for call in below(tree, ast.Call)
    ]


def _counted(tree: ast.AST) -> list[str]:
    """The names that a remainder is taken of: `i` in `(i + 1) % k`."""
    return [
        name.id
        for node in below(tree, ast.BinOp)
        if isinstance(node.op, ast.Mod)
        for name in below(node.left, ast.Name)
    ]

"""What is said of a pasted excerpt in which nothing was found: what was read, what is not in it, and what decides."""

from __future__ import annotations

import ast
import builtins
import re

from fallline.syntax.nodes import below
from fallline.triage.claim import Action
from fallline.triage.honest import READ, Reply
from fallline.triage.pasted import parsed

__all__ = ["DECIDES", "SHOW_CODE", "silent"]

SHOW_CODE = "Can you paste the loop, or name the file that it is in?"
_KNOWN = frozenset(dir(builtins)) | {"nn", "F", "torch", "np", "DataLoader", "Variable"}
_MOST = 3
# what decides, by what the question complains of: its words, and the code that shows it
DECIDES = (
    (
        r"\bnans?\b|\binf\b",
        Action(
            "Find the first value that is not finite: the line that anomaly mode names.",
            code="with torch.autograd.detect_anomaly():\n    loss.backward()",
        ),
    ),
    (
        r"\bshapes?\b|\bsizes?\b|dimension|mismatch|broadcast",
        Action(
            "Print the shapes on both sides of the line in question; they must be equal, or broadcast as you mean it:",
            code="print(outputs.shape, targets.shape)",
        ),
    ),
    (
        r"not? (?:\w+ )?(?:learn|train|chang|updat|decreas|converg|improv|reduc|work)|n't (?:\w+ )?(?:learn|train|chang|updat|decreas|converg|improv|reduc|work)|same (?:loss|output|value|result)|stuck|constant|\bnone\b|zero",
        Action(
            "See which parameters the loss reaches: None means that there is no way to them, 0 that something flat lies on it.",
            code="loss.backward()\nfor name, p in model.named_parameters():\n    print(name, None if p.grad is None else p.grad.norm().item())",
        ),
    ),
    (
        r"accura|metric|wrong|score|value|result|different|negative|larger|smaller",
        Action(
            "Compute it once by hand: four samples whose answer you know, and compare.",
            code="with torch.no_grad():\n    for output, target in zip(outputs[:4], targets[:4]):\n        print(output, target)",
        ),
    ),
)


def silent(prose: str, code: str) -> Reply:
    """That nothing was found in an excerpt, and how to find out."""
    lines = sum(bool(line.strip()) for line in code.splitlines())
    says = f"The reader found none of the mistakes it knows in these {lines} lines; they are an excerpt, so that settles little."
    if unseen := _unseen(code):
        names = ", ".join(f"`{name}`" for name in unseen[:_MOST])
        says += f" What {names} {'does' if len(unseen) == 1 else 'do'} is not in it."
    found = [action for words, action in DECIDES if re.search(words, prose)][:1]
    return Reply(f"{says} {SHOW_CODE}", None, [*found, READ], SHOW_CODE)


def _unseen(code: str) -> list[str]:
    """The functions that are called and neither defined in it nor known to everybody."""
    tree = parsed(code)
    if tree is None:
        return []
    made = {node.name for node in below(tree, ast.FunctionDef, ast.ClassDef)}
    made |= {n.id for n in below(tree, ast.Name) if isinstance(n.ctx, ast.Store)}
    made |= {a.asname or a.name for i in below(tree, ast.ImportFrom) for a in i.names}
    called = [c.func.id for c in below(tree, ast.Call) if isinstance(c.func, ast.Name)]
    return [name for name in dict.fromkeys(called) if name not in made | _KNOWN]

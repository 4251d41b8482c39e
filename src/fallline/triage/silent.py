"""What is said of a pasted excerpt in which nothing was found: what was read, what is not in it, and what decides."""

from __future__ import annotations

import ast
import builtins
import re

from fallline.syntax.nodes import below, methods_called
from fallline.triage.claim import Action
from fallline.triage.honest import READ, Reply
from fallline.triage.pasted import as_far_as, parsed
from fallline.triage.program import facts_of
from fallline.triage.symptoms import symptoms

__all__ = ["DECIDES", "SHOW_CODE", "silent"]

SHOW_CODE = "Can you paste the loop, or name the file that it is in?"
_KNOWN = frozenset(dir(builtins)) | {"nn", "F", "torch", "np", "DataLoader", "Variable"}
_MOST = 3
_LEARNING = frozenset({"stuck", "same", "swings", "rises"})
_SOUND = "the layers are registered and `forward` uses them, so the model is in order as far as it can be seen here. What keeps the loss up is then in what was not pasted: the shapes that the loss compares ((N, 1) against (N) broadcasts without an error), the scale of inputs and targets, the optimizer's learning rate, or the loop. Paste those, or name the file."
_MEMORISE = Action(
    "Let it memorise 20 examples (Adam with 1e-3, 500 updates, no dropout), and print the shapes of outputs and targets once:",
    code="print(outputs.shape, targets.shape, inputs.mean().item(), inputs.std().item())",
    see="equal shapes, inputs around 0 with deviation 1, and a loss near 0: then data or rate are at fault, otherwise the code.",
)
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
    """That nothing was found in an excerpt, what of a training is not in it, and how to find out."""
    lines = sum(bool(line.strip()) for line in code.splitlines())
    says = f"The reader found none of the mistakes it knows in these {lines} lines"
    tree = as_far_as(code)
    missing = _missing(tree) if tree is not None else []
    complaints = symptoms(prose)
    if _only_a_model(missing) and complaints & _LEARNING:
        return Reply(f"{says}: {_SOUND}", None, [_MEMORISE, READ], SHOW_CODE)
    says += "; they are an excerpt, so that settles little."
    if unseen := _unseen(code):
        names = ", ".join(f"`{name}`" for name in unseen[:_MOST])
        says += f" What {names} {'does' if len(unseen) == 1 else 'do'} is not in it."
    elif missing:
        says += f" Not in it: {', '.join(missing)}."
    found = [action for words, action in DECIDES if re.search(words, prose)][:1]
    return Reply(f"{says} {SHOW_CODE}", None, [*found, READ], SHOW_CODE)


def _missing(tree: ast.Module) -> list[str]:
    """What a training has and this excerpt has not."""
    facts = facts_of(tree)
    called = methods_called(tree)
    have = {
        "the model": any(c.bases for c in below(tree, ast.ClassDef)) or "Sequential" in called,
        "the loss": any(f.startswith("loss ") for f in facts),
        "the optimizer": any(f.startswith("optimizer ") for f in facts),
        "the loop": "backward" in called,
    }
    return [name for name, there in have.items() if not there]


def _only_a_model(missing: list[str]) -> bool:
    return missing == ["the loss", "the optimizer", "the loop"]


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

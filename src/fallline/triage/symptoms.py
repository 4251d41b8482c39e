"""What a question complains of, in a few names that causes use (`explains:` in `points/causes.md`): stuck, same, nan, memory, slow, overfit, mode, swings, negative, metric, rises, differs."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

__all__ = ["COMPLAINTS", "raised", "symptoms"]

_NOT = r"(?:\bnot\b|n['’]?t\b|\bnever\b|\bno\b|\bhardly\b|\bbarely\b|\bfails? to\b|\bstops?\b|\bwithout\b|\bunable to\b)"
_SAID = {
    "nan": r"\bnans?\b|\binf\b|\bnot a number\b",
    "memory": r"\bout of memory\b|\boom\b|\bmemory\b[^.?!]{0,40}\b(?:grow|increas|leak|ris|full|keep|accumul|more)|\bmemory leak|\b(?:more|too much|all (?:the )?) ?(?:gpu |cuda |v?ram )?memory\b|\bincreas\w* (?:in )?(?:gpu |cuda )?memory",
    "slow": r"\btimes?\b[^.?!]{0,40}\b(?:grow|increas|longer|rises)|\b(?:slow(?:er|ly)?|takes? (?:so|too|very|forever)|taking (?:so|too|very|forever)|speed ?up|bottleneck)\b|\b(?:gpu|volatile)\b[^.?!]{0,25}\b(?:low|0 ?%|idle|utili[sz])",
    "same": r"\b(?:same|identical|constant|single|only one|one|equal|mean|average) (?:class|output|prediction|predict\w*|samples?|images?|batch|value|label|result|number|answer)s?\b|\b(?:always|only|just) (?:predict|output|return|giv|get|produc)\w*|\ball (?:the )?(?:outputs?|predictions?|probabilit\w+) (?:are|is) (?:the )?(?:same|equal|identical|zeros?)|\bmean for every\b|\bpredict\w* (?:all|every\w*) (?:as|to be)\b",
    "stuck": rf"\b(?:acc\w*|scores?|rewards?|performance|f1|iou|dice)\b[^.?!\n]{{0,30}}{_NOT} (?:\w+ )?(?:increas|ris)\w*|{_NOT} (?:\w+ ){{0,4}}?(?:learn|train|chang|updat|decreas|converg|improv|reduc|descen|work|go(?:es|ing)? (?:down|up)|drop|fall|fit|overfit|get(?:ting)? (?:better|lower))\w*|\b(?:stuck|plateau\w*|stagnat\w*|stays? (?:at|the same|constant|around)|remains?|flat|constant|hovers?|same loss|chance|random guess\w*|(?:low|bad|poor|terrible|worse) (?:accuracy|performance|results?|acc)|(?:loss|accuracy|acc|results?)\b(?:[^.?!\n]|\.\d){{0,50}}\b(?:is|are) (?:\w+ )?(?:not good|so bad|low|bad|poor)|saturat\w*)\b",
    "overfit": r"\boverfit\w*|\bgenerali[sz]\w*|\b(?:val(?:idation)?|test|dev|eval(?:uation)?)[ _]?(?:loss|acc\w*|score|set|data|error|performance|results?)\b[^.?!]{0,60}\b(?:increas|ris|wors|low|bad|poor|high|stuck|drop|constant|not)|\b(?:train\w*)\b[^.?!]{0,60}\bbut\b[^.?!]{0,40}\b(?:val|test|dev|eval)",
    "mode": r"(?=.*\beval\b)(?=.*\b(?:differ\w*|wors\w*|bad|drop\w*|wrong|chang\w*|lower|poor\w*)\b)|\b(?:differ\w*|inconsistent|chang\w*) (?:\w+ )?(?:output|prediction|result)s?\b[^.?!]{0,50}\b(?:same (?:input|image|sample)|each time|every (?:time|call))",
    "swings": r"\b(?:fluctuat|oscillat|jump|zig-?zag|unstable|nois|spik|bounc|up and down|wobbl|erratic)\w*",
    "negative": r"\bnegative (?:loss|value|number)|\b(?:loss|it|kl)\b[^.?!]{0,25}\bnegative\b",
    "metric": r"\bacc(?:uracy)?\b[^.?!]{0,30}(?:\b(?:0|zero|wrong|above|greater|over|more than|exceeds?|higher than|larger than)\b|>|100)|\bloss\b[^.?!]{0,40}\b(?:decreas|go(?:es|ing) down|fall|drop|reduc|low)\w*[^.?!]{0,40}\b(?:but|while|and)\b[^.?!]{0,30}\bacc|\b(?:f1|iou|dice|auc|map|recall|precision)\b[^.?!]{0,30}\b(?:0|zero|wrong|nan|low)\b",
    "rises": r"\bloss\b[^.?!]{0,30}\b(?:increas|ris(?:es|ing)|go(?:es|ing)? up|explod|diverg|blow|grow|huge|get(?:s|ting)? (?:larger|bigger|higher|worse))\w*",
    "differs": r"\breproduc\w*|\bdifferent (?:results?|losses|accurac\w+|values?) (?:each|every|on each|in each|between|when|with the same seed)|\bnon-?determin\w*",
}  # fmt: skip
# what a pasted message is about: only what explains that answers it
_RAISED = {
    "nograd": r"does not require grad|does not have a grad_fn",
    "empty": r"optimizer got an empty parameter list",
    "noattribute": r"object has no attribute '(?:parameters|named_parameters|to|cuda|train|eval|state_dict|zero_grad|children|modules)'",
    "matrices": r"size mismatch, m1: ?\[|mat1 and mat2 shapes cannot be multiplied",
    "channels": r"\bto have \d+ channels, but got \d+ channels",
    "rows": r"expected input batch_size \(",
    "targets": r"(?:using a )?target size \(torch",
    "labels": r"device-side assert|t < n_classes|cur_target < n_classes|target \d+ is out of bounds",
    "twice": r"backward through the graph a second time",
    "inplace": r"modified by an inplace operation",
    "norecord": r"no inf checks were recorded for",
    "gradnone": r"'nonetype' object has no attribute '(?:data|norm|zero_|abs|mean|clone|detach|sum|item|view)'|\bgrad(?:ient)?s? (?:is|are|was|=|==|all|becomes?)[^.?!\n]{0,15} none|\bgrad(?:ient)?s? none\b|\.grad\b[^.?!\n]{0,30}\bnone\b",
    "devices": r"expected all tensors to be on the same device|input type \(.*\) and weight type",
    "notensor": r"must be tensor, not \w+|received an invalid combination of arguments|'nonetype' object has no attribute|not callable|'(?:relu|sigmoid|softmax|tanh|leakyrelu|flatten|gelu)' object has no attribute|boolean value of tensor",
    "ambiguous": r"boolean value of tensor",
    "notcalled": r"'method' object is not iterable|params argument given to the optimizer should be an iterable",
    "positions": r"expected target size",
    "stack": r"stack expects each tensor to be equal size",
    "scalar": r"grad can be implicitly created only for scalar outputs",
    "update": r"no inf checks were recorded prior to update",
    "types": r"found dtype \w+ but expected \w+|expected scalar type \w+ but found \w+|expected object of scalar type|expected target dtype",
    "unreturned": r"training_step (?:did not return|returned none)|`?configure_optimizers`? returned `?none|will not train|no `loss` value",
    "oom": r"out of memory",
    "unleaf": r"can't optimize a non-leaf",
    "growing": r"out of memory(?=[\s\S]*\b(?:validat\w*|increas\w*|grow\w*|after (?:\w+ )?\d* ?(?:epoch|iteration|batch|step)s?|few (?:epoch|iteration|batch|step)\w*))|\b(?:validat\w*|increas\w*|grow\w*)\b[\s\S]*out of memory",
}  # fmt: skip
# what the numbers of a log show
_SHOWN = {
    "loss nan": "nan",
    "norm nan always": "nan",
    "loss at chance": "stuck",
    "loss flat": "stuck",
    "loss swings": "swings",
    "loss rises": "rises",
    "loss diverged": "rises",
    "memory grows": "memory",
    "val loss turns": "overfit",
}

COMPLAINTS = frozenset(_SAID | _RAISED)


@cache
def _patterns(raised: bool) -> dict[str, re.Pattern[str]]:
    """Compiled when they are first needed: most questions have no code that they would explain."""
    return {name: re.compile(said) for name, said in (_RAISED if raised else _SAID).items()}


def raised(text: str) -> frozenset[str]:
    """The names of what a pasted message is about."""
    low = text.lower()
    return frozenset(name for name, pattern in _patterns(True).items() if pattern.search(low))


def symptoms(prose: str, facts: Collection[str] = ()) -> frozenset[str]:
    """The names of what prose complains of, and of what the numbers of a log show."""
    low = prose.lower()
    said = {name for name, pattern in _patterns(False).items() if pattern.search(low)}
    return frozenset(said | {_SHOWN[f] for f in facts if f in _SHOWN})

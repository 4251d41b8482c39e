"""What the asker has done already, in their words ("I already lowered the learning rate", "24 workers did not help") or in their code: no answer recommends it again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fallline.triage.claim import Action, Claim

__all__ = ["Done", "done_in"]

_SENTENCE = re.compile(r"\n+|(?<=[.?!;])\s+|, (?=but|however|and yet|still)")
# who says it of what was done; a question ("should I lower the rate?") is not that
_TRIED = re.compile(
    r"(?i)\b(?:already|tried|trying|even (?:with|when|after|if|though)|although|though|no matter|regardless|"
    r"(?:n't|not|no) (?:help|work|solve|fix|change|improv)\w*|i(?:'ve| have)|we(?:'ve| have)|i (?:use|used|set|add|added|reduce|reduced|lower|lowered|increase|increased|change|changed|clip|load|save|also|just)|"
    r"am using|we use|after (?:reducing|lowering|adding|setting|changing)|still|both)\b"
)
_ASKS = re.compile(r"(?i)\b(?:should|shall|can|could|may|must|do) i\b|\bhow (?:do|can|to)\b|\?\s*$")
_HEAD = 60  # characters of an action that say what it is; what comes later is one thing of many
_ONLY = re.compile(
    r"(?i)\bonly\b|\bwithout\b|\bnever\b|\bforgot\b|\b(?:do|did|have) ?n[o']t (?:use|load|save|set|clip)\b"
)
_SURE = re.compile(r"(?i)\b(?:already|even (?:with|when|after|if|though)|tried|no matter)\b")


class _Measure:
    """One thing that people do: how they say it, how it looks in code, how an action recommends it, and what to call it.

    Its patterns are compiled when they are first looked for: most questions say nothing of what was tried.
    """

    def __init__(self, label: str, said: str, advised: str, code: str = "") -> None:
        self.label = label
        self._said, self._advised, self._code = said, advised, code

    def said(self, text: str) -> bool:
        return bool(text) and re.search(f"(?i){self._said}", text) is not None

    def advised(self, text: str) -> bool:
        return re.search(f"(?i){self._advised}", text) is not None

    def coded(self, text: str) -> bool:
        return bool(self._code and text.strip()) and re.search(self._code, text) is not None


_MEASURES = (
    _Measure(
        "a lower learning rate",
        r"(?:lower|reduc|decreas|small|tun|different|various|chang|vary)\w*(?: \w+){0,3} (?:learning rates?|lr)\b|(?:learning rate|lr)\b[^.?!]{0,30}(?:lower|reduc|decreas|smaller|\b1e-[5-9])|\b1e-[6-9] still",
        r"\b(?:lower|reduce|divide|decrease|smaller)\b.{0,25}\brate\b|\brate\b.{0,25}\b(?:lower|times lower|tenth|divided)",
    ),
    _Measure("gradient clipping", r"\bclip(?:ped|ping|s)?\b", r"^(?:add )?(?:gradient )?clip(?:ping)?\b(?! inside| in| by| each| once)"),
    _Measure("a warm-up", r"warm-?up", r"\bwarm-?up\b"),
    _Measure("more workers", r"\b(?:num_?)?workers?\b", r"\bnum_workers\b|\b(?:more|add|raise)\b.{0,12}\bworkers\b"),
    _Measure("`empty_cache`", r"empty_cache", r"empty_cache"),
    _Measure(
        "a smaller batch",
        r"batch[_ ]?size[^.?!\d]{0,16}\b[1-4]\b|(?:reduc|lower|decreas|small)\w* (?:the |my )?batch",
        r"\b(?:smaller|reduce|lower|halve|fewer)\b.{0,20}\bbatch",
    ),
    _Measure(
        "the optimizer's state in the checkpoint",
        r"opt\w*\.load_state_dict|(?:load|restor|sav|resum)\w*[^.?!]{0,40}optimi[sz]er|optimi[sz]er[^.?!]{0,20}(?:load|restor|saved)",
        r"save and (?:load|restore) (?:both|all)|(?:save|restore|load)\b.{0,30}\boptimizer",
        r"(?i)\bopt\w*\.load_state_dict",
    ),
    _Measure("fixed seeds", r"\bseeds?\b", r"\b(?:set|fix)\b.{0,12}\bseeds?\b|manual_seed", r"manual_seed|seed_everything"),
    _Measure("`inplace=False`", r"inplace ?= ?false|remov\w+ (?:all )?(?:the )?inplace", r"inplace=False"),
    _Measure("anomaly detection", r"backtrace further above|(?:use|used|enabl|turn)\w*[^.?!]{0,20}(?:anomaly|detect_anomaly)", r"anomaly|print the line that made the tensor"),
    _Measure("bfloat16", r"\b(?:bf16|bfloat16)\b", r"\b(?:use|train in|switch to) (?:bf16|bfloat16)"),
    _Measure("activation checkpointing", r"(?:gradient|activation)[ _]checkpointing", r"(?:gradient|activation) checkpointing|gradient_checkpointing"),
    _Measure("`eval()`", r"model\.eval|\.eval\(\)|eval mode", r"^(?:call|put|switch|set)\b.{0,30}\beval\b", r"\.eval\(\)"),
    _Measure("normalised inputs", r"normali[sz]ed? (?:the |my )?(?:data|inputs?|images?)|(?:data|inputs?|images?) (?:is|are) normali[sz]ed", r"^normali[sz]e", r"\bNormalize\("),
    _Measure("one batch", r"overfit\w*[^.?!]{0,20}\b(?:one|single|small|few)\b", r"\bone (?:small )?batch\b"),
    _Measure("another optimizer", r"(?:different|other|another|various) optimi[sz]ers?|\bsgd\b[^.?!]{0,30}\badam|\badam\w*\b[^.?!]{0,30}\bsgd", r"AdamW instead|another optimizer"),
    _Measure("`find_unused_parameters=True`", r"find_unused_parameters ?= ?true", r"find_unused_parameters=True"),
    _Measure("`retain_graph=True`", r"retain_graph", r"\bset `?retain_graph"),
    _Measure("weight decay", r"weight[_ ]decay|\bl2\b", r"^(?:add |use )?weight decay"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Done:
    """The measures that were taken already."""

    measures: tuple[_Measure, ...] = ()

    @property
    def facts(self) -> list[str]:
        """Their names for claims that begin where a measure did not help (`shows: tried more workers`)."""
        return [f"tried {m.label}" for m in self.measures]

    def repeats(self, action: Action, claim: Claim) -> bool:
        """Whether an action recommends nothing but what was done. A claim about a measure is for who takes it, so that one is not counted."""
        if not self.measures:
            return False
        subject = " ".join(claim.subject)
        advised = [m for m in _MEASURES if m.advised(action.do[:_HEAD])]
        done = [m for m in self.measures if not m.said(subject)]
        return bool(advised) and all(m in done for m in advised)

    def called(self, actions: list[Action]) -> list[str]:
        """What to call the measures of these actions."""
        return [m.label for m in self.measures if any(m.advised(a.do[:_HEAD]) for a in actions)]


def done_in(prose: str, code: str) -> Done:
    """The measures that are in the code, or that a sentence says were tried. A call that is named in a statement was made, too."""
    sentences = [s for s in _SENTENCE.split(prose) if not _ONLY.search(s)]
    stated = [s for s in sentences if not _ASKS.search(s) or _SURE.search(s)]
    tried = " \n".join(s for s in stated if _TRIED.search(s))
    calls = " \n".join([code, *stated])
    return Done(tuple(m for m in _MEASURES if m.said(tried) or m.coded(calls)))

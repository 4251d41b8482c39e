"""Complaints in everyday words only ("why didn't my loss drop in training?"): they name nothing that would tell one cause from another, so the answer is the general one of that complaint."""

from __future__ import annotations

from fallline.triage.symptoms import symptoms
from fallline.triage.words import tokens

__all__ = ["plain_complaint"]

_EVERYDAY = frozenset(
    "loss losses train training trained trains model models network networks net nn neural learn learns learning decrease decreases decreasing decreased drop drops dropping dropped fall falls falling "
    "down go goes going reduce reduces reduced reducing converge converges converging convergence improve improves improving change changes changing changed update updates updating updated work works working "
    "stuck plateau plateaus constant flat same stays stay remain remains value point weights parameters pytorch torch deep after during epoch epochs few some while beginning start question problem issue help please "
    "why how what is are was were do does did don doesn didn isn not no never can could should would my our the a an it its this that there i we you in on of to for at with and but or so be been get gets getting any "
    "anyone idea fix solve reason hello hi hey thanks thank seems seem all always still just very really at well much than expected normal s t n my keeps keep fluctuate fluctuates fluctuating oscillate oscillates oscillating "
    "lot wildly widely unstable increase increases increasing rise rises rising up slow slowly slower fast time takes long too nan inf becomes become".split()
)
_FEWEST = 2


def plain_complaint(prose: str) -> frozenset[str]:
    """What a question complains of, where all of its words are everyday ones; nothing for another question."""
    words = [w for w in tokens(prose) if len(w) > 1]
    if len(words) < _FEWEST or not _EVERYDAY.issuperset(words):
        return frozenset()
    return symptoms(prose)

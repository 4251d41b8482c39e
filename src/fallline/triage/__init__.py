"""The third door: a question, perhaps with code and a run, to what is known, what to measure, and what to do.

Knows no torch, and neither the reader nor the watcher: evidence comes in as findings.
"""

from fallline.triage.answer import Answer, answer
from fallline.triage.playbook import Playbook, playbooks
from fallline.triage.recognise import Match, recognise

__all__ = ["Answer", "Match", "Playbook", "answer", "playbooks", "recognise"]

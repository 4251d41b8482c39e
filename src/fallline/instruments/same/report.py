"""What `fallline measure same` answers with."""

from __future__ import annotations

import linecache
from dataclasses import asdict, dataclass, field
from typing import Any

from fallline.instruments.same.compare import Difference, Operation

__all__ = ["Cause", "Same"]

_SHOWN = 6


@dataclass
class Cause:
    """Why the runs differ. `confirmed`: with this source pinned in both runs, the difference was gone."""

    source: str  # one of `sources.SOURCES`, "uninitialised", "world", "not restored", "" unknown
    text: str
    remedy: str
    confirmed: bool
    path: str = ""
    line: int = 0
    said: list[str] = field(default_factory=list)  # by torch, of kernels that are not deterministic


@dataclass
class Same:
    """Whether two runs gave the same bits."""

    compared: str  # "twice" | "ranks" | "resume"
    same: bool
    updates: int  # that both runs did
    difference: Difference | None = None
    operation: Operation | None = None
    cause: Cause | None = None
    tried: dict[str, bool] = field(
        default_factory=dict
    )  # source → the difference was gone when it was pinned
    resumed_at: int | None = None  # the update after which the resumed run continues
    runs: int = 0
    partial: bool = False
    status: int = 0  # of the script, where it failed
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = [f"same: {self._verdict()}"]
        if self.partial and self.updates:
            lines.append(f"  partial: both runs came to {self.updates} updates.")
        elif self.status == 130:
            lines.append("  partial: stopped before there was anything to compare.")
        if self.operation is not None:
            lines += ["", *self._operation()]
        if self.cause is not None:
            lines += ["", *self._cause()]
        if self.difference is not None:
            lines += ["", *self._parameters()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _verdict(self) -> str:
        runs = {
            "twice": "both runs",
            "ranks": "one rank and several",
            "resume": f"a straight run and one resumed after update {self.resumed_at}",
        }[self.compared]
        if self.compared == "resume" and self.resumed_at is None:
            runs = "a straight run and a resumed one"
        if self.same:
            return f"{runs} give the same bits in {self.updates} updates"
        if self.difference is None:
            return f"{runs} could not be compared"
        found = self.difference
        names = (
            f" of {found.parameters[0]}" if found.stage == "gradients" and found.parameters else ""
        )
        return f"{runs} differ from update {found.update} on (updates count from 0), first in {found.what}{names}"

    def _operation(self) -> list[str]:
        op = self.operation
        assert op is not None
        inputs = "data, which no operation made" if self.compared == "twice" else "inputs"
        what = {
            "kernel": "gave different results for the same inputs",
            "random": "drew different random numbers",
            "number": f"got a different number from Python: {op.detail}",
            "data": f"got different {inputs}{': ' + op.detail if op.detail else ''}",
            "unwritten": "read uninitialised memory (torch.empty)",
            "order": f"came in a different order: the other run did {op.detail} here",
            "path": f"ran in one run only: the other did {op.detail} here",
        }[op.kind]
        return [
            f"the first operation that differs: {op.op} in the {op.phase} of update {op.update} {what}",
            f"  {_place(op.path, op.line)}",
        ]

    def _cause(self) -> list[str]:
        cause = self.cause
        assert cause is not None
        sure = "" if cause.confirmed else " (not confirmed)"
        lines = [f"because of {cause.text}{sure}"]
        if cause.path:
            lines.append(f"  {_place(cause.path, cause.line)}")
        lines += [f"  torch says: {text}" for text in cause.said[:_SHOWN]]
        if cause.remedy:
            lines.append(f"  instead: {cause.remedy}")
        for source, gone in self.tried.items():
            lines.append(
                f"  tried: pinned {source}, the difference was {'gone' if gone else 'still there'}"
            )
        return lines

    def _parameters(self) -> list[str]:
        found = self.difference
        assert found is not None
        if not found.parameters:
            return []
        what = {"before": "before training", "gradients": "in their gradients", "state": "in the optimizer's state"}  # fmt: skip
        lines = [
            f"parameters that differ {what.get(found.stage, f'after update {found.update}')}: {len(found.parameters)}"
        ]
        lines += [f"  {name}" for name in found.parameters[:_SHOWN]]
        if len(found.parameters) > _SHOWN:
            lines.append(f"  and {len(found.parameters) - _SHOWN} more")
        if found.relative is not None and found.last_relative is not None:
            size = "as rounding does" if found.rounding else "more than rounding does"
            lines.append(
                f"  apart by {found.relative:.1e} of their size after that update, {found.last_relative:.1e} after the last: {size}"
            )
        return lines


def _place(path: str, line: int) -> str:
    if not path:
        return "in no line of the script"
    return f"{path}:{line}  {linecache.getline(path, line).strip()}".rstrip()

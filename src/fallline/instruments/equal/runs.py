"""Makes the runs: of a script in a mother process of its own, of a function in processes forked from this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fallline.errors import UsageError
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.way import Way
from fallline.instruments.frame import Progress
from fallline.instruments.script import Script

__all__ = ["Failed", "Runs"]


class Failed(Exception):
    """The script did not get through in this way; says why. `output`: all that it said."""

    def __init__(self, why: str, output: str = "") -> None:
        super().__init__(why)
        self.output = output


class Runs:
    """Each run once: the same way asked for again is answered from memory."""

    def __init__(
        self, target: Script | Callable[[], object], progress: Progress | None = None
    ) -> None:
        if not hasattr(os, "fork"):
            raise UsageError(
                "`fallline equal` forks a process for every way, and this system cannot fork"
            )
        self.target = target
        self.count = 0
        self._folder = tempfile.TemporaryDirectory(prefix="tmp-fallline-equal-")
        self._mother: subprocess.Popen[str] | None = None
        self._progress = progress
        self._known: dict[Way, list[Record]] = {}

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mother is not None:
            assert self._mother.stdin is not None
            self._mother.stdin.close()
            if error is not None:
                self._mother.kill()
            self._mother.wait()
        self._folder.cleanup()

    @property
    def folder(self) -> str:
        """For files of the runs; it goes away with them."""
        return self._folder.name

    def memory(self) -> dict[str, tuple[int, int]]:
        """Peak bytes on the host and on a device: of the first run, and the most of any other."""
        peaks = [(r.host_peak, r.device_peak) for records in self._known.values() for r in records]
        if not peaks:
            return {}
        most = (max(h for h, _ in peaks), max(d for _, d in peaks))
        return {"as_written": peaks[0], "most": most}

    def run(self, way: Way, *, again: bool = False) -> Record:
        """The record of rank 0. `Failed` where the script raised before its update was complete."""
        return self.ranks(way, again=again)[0]

    def ranks(self, way: Way, *, again: bool = False) -> list[Record]:
        """The records of all ranks."""
        if again or way not in self._known:
            self._known[way] = self._run(way)
        return self._known[way]

    def _run(self, way: Way) -> list[Record]:
        self.count += 1
        if self._progress is not None:
            self._progress.advance(self.count, way.name)
        out = Path(self._folder.name) / f"run{self.count}"
        output = f"{out}.output"
        statuses = self._ordered(way, str(out), output)
        if 130 in statuses or -2 in statuses:
            raise KeyboardInterrupt
        import torch  # after the runs' own process has begun to import it too

        records = []
        for rank in range(way.ranks):
            path = Path(f"{out}.{rank}")
            if not path.exists():
                said = _said(output)
                last = said.strip().rpartition("\n")[2]
                raise Failed(last or f"the process ended with status {statuses[rank]}", said)
            records.append(Record.of(torch.load(path, weights_only=True)))
        for record in records:
            if record.error or (record.status and not record.backwards):
                why = record.error or f"the script ended with status {record.status}"
                raise Failed(why, _said(output))
        return records

    def _ordered(self, way: Way, out: str, output: str) -> list[int]:
        if not isinstance(self.target, Script):
            return self._fork(way, out, output)
        if self._mother is None:
            self._mother = self._start(self.target)
        assert self._mother.stdin is not None and self._mother.stdout is not None
        order = {"way": way.to_json(), "out": out, "output": output}
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        answer = self._mother.stdout.readline()
        if not answer:
            raise (
                KeyboardInterrupt
                if self._mother.wait() in (130, -2)
                else Failed("the process that runs the script has died")
            )
        return list(json.loads(answer)["statuses"])

    def _start(self, script: Script) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fallline.instruments.equal.mother"]
        command += ["-m"] if script.module else []
        command += [script.path, *script.arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _fork(self, way: Way, out: str, output: str) -> list[int]:
        import torch

        from fallline.instruments.equal.mother import import_torch, is_spoilt, run_forked

        import_torch()
        # in this order: the second question itself spoils it
        if is_spoilt() and torch.cuda.is_available():
            raise UsageError(
                "a process that has used CUDA, or asked torch for it, cannot be forked: call fallline.equal before, or give it the script"
            )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the threads of this process do not exist in the forked one
        try:
            return run_forked(way, self.target, out, output)
        finally:
            torch.set_num_threads(threads)


def _said(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()

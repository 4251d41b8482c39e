"""Where the ranks of a job meet before they have a process group: a key-value store that torchrun (or rank 0) keeps.

Every collective can wait for ever for a rank that does not come. Here each rank says where it is, in the store, so that whoever
waits too long can name the one that is missing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from fallline.errors import FalllineError

__all__ = ["Meeting", "SilentRank"]

Found = TypeVar("Found")
_PAUSE = 0.05


class SilentRank(FalllineError):
    """A rank that did not answer in time; the text says which one, and in what."""


class Meeting:
    """This rank among the others."""

    def __init__(self, *, seconds: float) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.seconds = seconds
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not address or not port.isdecimal():
            raise FalllineError(
                "RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not: start the ranks with torchrun"
            )
        self._kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            store = TCPStore(
                address,
                int(port),
                self.world,
                is_master=self.rank == 0 and not self._kept,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SilentRank(
                f"rank {self.rank} cannot reach the store at {address}:{port} within {seconds:g} s ({reason}): is this address the "
                "first machine's, is the port open, and does its rank 0 run?"
            ) from None
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store: Store = PrefixStore(f"fallline.ranks.{again}", store)

    def missing(self, name: str, seconds: float) -> list[int]:
        """The ranks that have not said this, after waiting for them."""
        deadline = time.monotonic() + seconds
        left = list(range(self.world))
        while left:
            left = [rank for rank in left if not self._is_said(f"{name}/{rank}")]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        return left

    def _is_said(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except RuntimeError:
            raise SilentRank(
                f"rank {self.rank} lost the store of the job, which {'torchrun' if self._kept else 'rank 0'} keeps: it has ended"
            ) from None

    def leave(self) -> None:
        """Whoever keeps the store goes last: the others may still be reading."""
        self.store.set(f"leaving/{self.rank}", "1")
        if self.rank == 0 and not self._kept:
            self.missing("leaving", self.seconds)

    def gather(self, name: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        """Everyone's value, by rank. Needs no process group."""
        limit = self.seconds if seconds is None else seconds
        self.store.set(f"{name}/{self.rank}", json.dumps(value))
        late = self.missing(name, limit)
        if late:
            raise SilentRank(
                f"rank {', '.join(map(str, late))} of {self.world} did not answer within {limit:g} s ({name}): did it start, and does "
                "its machine reach the first one?"
            )
        return [json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self.world)]

    def together(self, name: str, work: Callable[[], Found]) -> Found:
        """Do something that all ranks have to do at once; if it hangs, say who did not come through."""
        self.gather(f"{name}, arriving", 0)
        answer: list[Found] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                answer.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.seconds)
        if answer:
            self.store.set(f"{name}, done/{self.rank}", "1")
            return answer[0]
        late = self.missing(f"{name}, done", 1.0)
        reason = f": {str(failure[0]).splitlines()[0]}" if failure and str(failure[0]) else ""
        raise SilentRank(
            f"{name} did not end within {self.seconds:g} s; rank {', '.join(map(str, late))} did not come through{reason}"
        )

"""Projects, read in a process of their own: the server answers while a file is read, and outlives what goes wrong there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from fallline.errors import FalllineError
from fallline.finding import Finding
from fallline.limits import MEMORY, die_with_parent, limit_memory
from fallline.lsp.project import Change, Project, Target
from fallline.verdict.apart import apart

__all__ = ["Worker", "WorkerError"]

_SECONDS = 120.0  # for one request; a single file is cut short long before


class WorkerError(FalllineError):
    """The process that reads broke down, or took too long; the next request starts another."""


class Worker:
    """Asks the process, one request at a time. Blocks: to be called from a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._stopped = False

    def opened(self, folder: str, documents: Mapping[str, bytes]) -> list[Finding] | None:
        found: list[Finding] | None = self._ask("opened", folder, dict(documents))
        return found

    def findings(self, folder: str, documents: Mapping[str, bytes]) -> list[Finding]:
        found: list[Finding] = self._ask("findings", folder, dict(documents))
        return found

    def fixed(
        self, folder: str, documents: Mapping[str, bytes], target: Target | None, unsafe: bool
    ) -> list[Change]:
        changes: list[Change] = self._ask("fixed", folder, dict(documents), target, unsafe)
        return changes

    def silenced(self, folder: str, documents: Mapping[str, bytes], target: Target) -> list[Change]:
        changes: list[Change] = self._ask("silenced", folder, dict(documents), target)
        return changes

    def stop(self) -> None:
        """End the process at once, also in the middle of a request."""
        self._stopped = True
        process = self._process  # another thread may give it up meanwhile
        if process is not None:
            process.kill()

    def rest(self) -> None:
        """End the process; the next request starts another."""
        if self._lock.acquire(blocking=False):  # else it is in the middle of an answer
            try:
                self._give_up()
            finally:
                self._lock.release()

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            if self._stopped:
                raise WorkerError("the server is shutting down")
            connection = self._started()
            try:
                connection.send(request)
                if not connection.poll(_SECONDS):
                    raise EOFError
                reply = connection.recv()
            except (EOFError, OSError):
                self._give_up()
                raise WorkerError("the reader crashed on this project") from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _started(self) -> Connection[Any, Any]:
        if self._connection is None:
            # a fresh interpreter: a fork would share the server's threads and its standard input
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            with apart():
                process.start()
            theirs.close()
            self._connection, self._process = ours, process
            if self._stopped:  # while it was being started
                self._give_up()
                raise WorkerError("the server is shutting down")
        return self._connection

    def _give_up(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = self._connection = None


def _serve(connection: Connection[Any, Any]) -> None:
    """The process: answers until the server is gone."""
    os.dup2(2, 1)  # standard output belongs to the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory()
    die_with_parent()
    projects: dict[str, Project] = {}
    while True:
        try:
            method, folder, *arguments = connection.recv()
        except (EOFError, OSError):
            return
        project = projects.setdefault(folder, Project(folder))
        try:
            reply = getattr(project, method)(*arguments)
        except FalllineError as error:
            reply = error
        except MemoryError:
            projects.pop(folder)
            reply = WorkerError(f"this project takes more than {MEMORY >> 30} GB of memory to read")
        except Exception as error:
            projects.pop(folder)
            reply = WorkerError(f"a mistake in fallline itself: {type(error).__name__}: {error}")
        connection.send(reply)

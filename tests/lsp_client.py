"""A language client over standard input and output, as small as one can be; it writes down what was said."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT = 300.0  # seconds; the machine may be busy

CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {
        "publishDiagnostics": {"relatedInformation": True},
        "codeAction": {
            "resolveSupport": {"properties": ["edit"]},
            "dataSupport": True,
            "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix", "source"]}},
        },
        "hover": {"contentFormat": ["markdown"]},
    },
    "workspace": {
        "workspaceEdit": {"documentChanges": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
    },
}


class Client:
    """Starts the server on a folder and speaks with it. `transcript` has every message: ("→" or "←", what)."""

    def __init__(
        self,
        folder: Path,
        capabilities: dict[str, Any] = CAPABILITIES,
        command: Sequence[str] = (sys.executable, "-m", "fallline", "lsp"),
    ) -> None:
        self.folder = folder
        self.transcript: list[tuple[str, str]] = []
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._incoming: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kept: list[dict[str, Any]] = []
        self._numbers = 0
        self._together: list[bytes] | None = None  # messages that are sent at once
        threading.Thread(target=self._listen, daemon=True).start()
        self.server = self.ask(
            "initialize",
            {
                "processId": None,
                "rootUri": folder.as_uri(),
                "workspaceFolders": [{"uri": folder.as_uri(), "name": folder.name}],
                "capabilities": capabilities,
            },
        )
        self.tell("initialized", {})

    # -- messages ------------------------------------------------------------------------------------------------

    def tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params}, method)

    def ask(self, method: str, params: Any) -> Any:
        """The result of a request; an error is one here too."""
        self._numbers += 1
        number = self._numbers
        self._send({"id": number, "method": method, "params": params}, method)
        reply = self._await(lambda m: m.get("id") == number and "method" not in m)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def notification(self, method: str) -> Any:
        """The next notification of this method."""
        return self._await(lambda m: m.get("method") == method)["params"]

    def _send(self, message: dict[str, Any], said: str) -> None:
        self.transcript.append(("→", said))
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _write(self, data: bytes) -> None:
        if self._together is not None:
            self._together.append(data)
            return
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    @contextmanager
    def in_one_breath(self) -> Iterator[None]:
        """What is told in here is sent at its end, all at once: nothing can come between."""
        self._together = []
        yield
        data, self._together = b"".join(self._together), None
        self._write(data)

    def _await(self, wanted: Any) -> dict[str, Any]:
        for message in self._kept:
            if wanted(message):
                self._kept.remove(message)
                return message
        while True:
            message = self._incoming.get(timeout=WAIT)
            if "id" in message and "method" in message:  # the server asks: say yes
                self._send({"id": message["id"], "result": None}, f"{message['method']} (reply)")
            elif wanted(message):
                return message
            else:
                self._kept.append(message)

    def _listen(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while header := stream.readline():
            length = int(header.split(b":")[1])
            while stream.readline().strip():
                pass
            message = json.loads(stream.read(length))
            self.transcript.append(("←", message.get("method", "result")))
            self._incoming.put(message)

    # -- documents -----------------------------------------------------------------------------------------------

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str) -> None:
        document = {"uri": self.uri(name), "languageId": "python", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})

    def type(self, name: str, version: int, text: str) -> None:
        """Replace the whole text, unsaved."""
        self.tell(
            "textDocument/didChange",
            {
                "textDocument": {"uri": self.uri(name), "version": version},
                "contentChanges": [{"text": text}],
            },
        )

    def diagnostics(self, name: str, version: int | None = 1) -> list[dict[str, Any]]:
        """The next diagnostics for this version of a document."""
        uri = self.uri(name)
        message = self._await(
            lambda m: (
                m.get("method") == "textDocument/publishDiagnostics"
                and m["params"]["uri"] == uri
                and m["params"].get("version") == version
            )
        )
        found: list[dict[str, Any]] = message["params"]["diagnostics"]
        return found

    def actions(self, name: str, line: int, only: list[str] | None = None) -> list[dict[str, Any]]:
        """What is offered on a line, counted from 0."""
        at = {"line": line, "character": 0}
        end = {"line": line, "character": 200}
        context: dict[str, Any] = {"diagnostics": []}
        if only:
            context["only"] = only
        result = self.ask(
            "textDocument/codeAction",
            {
                "textDocument": {"uri": self.uri(name)},
                "range": {"start": at, "end": end},
                "context": context,
            },
        )
        return result or []

    def hover(self, name: str, line: int, character: int) -> str:
        result = self.ask(
            "textDocument/hover",
            {
                "textDocument": {"uri": self.uri(name)},
                "position": {"line": line, "character": character},
            },
        )
        return result["contents"]["value"] if result else ""

    def close(self) -> int:
        """Shut the server down; its exit status."""
        self.ask("shutdown", None)
        self.tell("exit", None)
        return self.process.wait(WAIT)


def edited(text: str, edits: list[dict[str, Any]]) -> str:
    """The text after edits as the protocol has them: UTF-16 units, all about the text before."""
    lines = text.splitlines(keepends=True)

    def offset(position: dict[str, int]) -> int:
        before = sum(map(len, lines[: position["line"]]))
        if position["line"] >= len(lines):
            return len(text)
        units = lines[position["line"]].encode("utf-16-le")[: 2 * position["character"]]
        return before + len(units.decode("utf-16-le"))

    for edit in sorted(edits, key=lambda e: -offset(e["range"]["start"])):
        start, end = offset(edit["range"]["start"]), offset(edit["range"]["end"])
        text = text[:start] + edit["newText"] + text[end:]
    return text

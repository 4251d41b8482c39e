"""The language server. Reading happens elsewhere and after a pause; every answer here is quick."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import defaultdict
from typing import Any
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from fallline._version import __version__
from fallline.errors import FalllineError
from fallline.finding import Finding
from fallline.lsp import convert
from fallline.lsp.documents import Documents, documents_of
from fallline.lsp.project import Change, Target
from fallline.lsp.worker import Worker
from fallline.rules import rule_by_code
from fallline.syntax.edits import split_lines
from fallline.syntax.source import UnreadableError, decode

__all__ = ["Server", "make_server"]

PAUSE = 0.25  # seconds without a keystroke before a reading begins
_FIX_ALL = "source.fixAll.fallline"
_CODE = re.compile(r"\bFL\d{3}\b")
_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithNotebook(
            notebook="jupyter-notebook",
            cells=[types.NotebookCellLanguage(language="python")],
        )
    ]
)


class Server(LanguageServer):
    """Remembers what it has published about each document, so that hovers and quick fixes need no reading."""

    def __init__(self) -> None:
        super().__init__("fallline", __version__, notebook_document_sync=_NOTEBOOKS)
        self.worker = Worker()
        self._quick = (
            Worker()
        )  # answers about open documents while the first reading of a project continues
        self._first: dict[str, asyncio.Task[None]] = {}  # that reading, by the project's folder
        self.told: dict[str, list[tuple[Finding, types.Diagnostic]]] = {}
        self._homes: dict[str, str] = {}  # URI with published findings → its project's folder
        self._published: dict[str, types.PublishDiagnosticsParams] = {}
        self._troubles: dict[str, str] = {}
        self._stopping = False
        self._changes = 0  # counts what the client reported
        self._settled = True  # what was told is about what is there now
        self._news = asyncio.Event()  # set, and replaced, when something was published
        self._reading: asyncio.Task[None] | None = None

    # -- reading -------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something is different: read after a pause. A reading under way continues, but its stale results are not published."""
        self._changes += 1
        self._settled = False
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_until_settled())

    async def caught_up(self, uri: str) -> None:
        """When what was told about this document is about the text that it has now."""
        while not self._settled:
            document, told = self._open(uri), self._published.get(uri)
            if document is not None and told is not None and told.version == document.version:
                return
            await self._news.wait()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _read_until_settled(self) -> None:
        while True:
            seen = self._changes
            await asyncio.sleep(PAUSE)
            if seen != self._changes:
                continue
            projects = documents_of(self.workspace)
            for uri in [uri for uri, folder in self._homes.items() if folder not in projects]:
                self._tell(uri, [])
            for project in projects.values():
                await self._read(project)
            if seen == self._changes:
                self._settled = True
                self._announce()
                return

    async def _read(self, project: Documents) -> None:
        """The open documents at once, then what else they have a part in."""
        folder, contents = project.folder, project.contents
        if folder not in self._first:
            self._first[folder] = asyncio.create_task(self._read_first(project))
        first = self._first[folder]
        worker = self.worker if first.done() else self._quick
        try:
            found = await asyncio.to_thread(worker.opened, folder, contents)
            if found is not None:
                self._publish(project, found, whole=False)
            if not first.done():
                return  # when it is, this comes again
            found = await asyncio.to_thread(self.worker.findings, folder, contents)
        except FalllineError as error:
            self._complain(folder, str(error))
            found = []
        else:
            self._troubles.pop(folder, None)
        self._publish(project, found, whole=True)

    async def _read_first(self, project: Documents) -> None:
        """The whole project, which can take seconds; afterwards a keystroke costs what it concerns."""
        with contextlib.suppress(FalllineError):  # told when it comes again
            await asyncio.to_thread(self.worker.findings, project.folder, project.contents)
        if all(task.done() or task is asyncio.current_task() for task in self._first.values()):
            self._quick.rest()
        self.changed()

    def stop(self) -> None:
        """End the processes that read."""
        self._stopping = True
        self.worker.stop()
        self._quick.stop()

    def _complain(self, folder: str, trouble: str) -> None:
        """A setting that is wrong is said once, not with every keystroke; nothing is said on the way out."""
        if not self._stopping and self._troubles.get(folder) != trouble:
            self._troubles[folder] = trouble
            self.window_show_message(
                types.ShowMessageParams(types.MessageType.Error, f"fallline: {trouble}")
            )

    def _publish(self, project: Documents, found: list[Finding], whole: bool) -> None:
        """Publish what was found: in the open documents, and if `whole` in all others that were or are concerned."""
        by_uri: dict[str, list[Finding]] = defaultdict(list)
        for finding in found:
            uri = project.address(os.path.abspath(finding.at.path), finding.evidence.get("cell"))
            if uri is not None:
                by_uri[uri].append(finding)
        before = {uri for uri, folder in self._homes.items() if folder == project.folder}
        concerned = {*by_uri, *before, *project.versions} if whole else {*project.versions}
        for uri in sorted(concerned):
            document = self._open(uri)
            if document is None or document.version == project.versions.get(uri):
                self._homes[uri] = project.folder
                self._tell(uri, by_uri[uri])
        self._announce()

    def _tell(self, uri: str, found: list[Finding]) -> None:
        document = self.workspace.get_text_document(uri)
        try:
            text = _text_of(document)
        except OSError:  # gone from the disk since it was read
            found, text = [], ""
        codec = self.workspace.position_codec
        events = self._can("publish_diagnostics", "related_information")
        self.told[uri] = [(f, convert.diagnostic(f, text, codec, events)) for f in found]
        params = types.PublishDiagnosticsParams(
            uri=uri, diagnostics=[told for _, told in self.told[uri]], version=document.version
        )
        if self._published.get(uri) != params:
            self._published[uri] = params
            self.text_document_publish_diagnostics(params)
        if not found and self._open(uri) is None:
            for memory in (self.told, self._homes, self._published):
                memory.pop(uri, None)

    def _open(self, uri: str) -> TextDocument | None:
        # pygls keeps them by decoded address
        return self.workspace.text_documents.get(unquote(uri))  # type: ignore[no-any-return]

    def _can(self, *names: str) -> bool:
        """Whether the client has said that it understands this."""
        at: Any = self.client_capabilities.text_document
        for name in names:
            at = getattr(at, name, None)
        return bool(at)

    # -- quick fixes ---------------------------------------------------------------------------------------------

    async def actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        """Fixes for the findings in the range, a comment that silences each, and all safe fixes of the document."""
        uri = params.text_document.uri
        await self.caught_up(uri)
        here = [(f, d) for f, d in self.told.get(uri, []) if _meet(d.range, params.range)]
        offered = [action for f, d in here for action in self._for_finding(uri, f, d)]
        if any(f.fix is not None and f.fix.safe for f, _ in self.told.get(uri, [])):
            offered.append(
                types.CodeAction(
                    "Fix everything that fallline can fix safely",
                    kind=_FIX_ALL,
                    data={"uri": uri, "do": "fix all"},
                )
            )
        wanted = params.context.only
        chosen = [a for a in offered if not wanted or any(_within(a.kind, k) for k in wanted)]
        support = self._can("code_action", "resolve_support")
        return chosen if support else [await self.resolved(action) for action in chosen]

    def _for_finding(
        self, uri: str, finding: Finding, told: types.Diagnostic
    ) -> list[types.CodeAction]:
        target = Target.of(finding)
        data = {
            "uri": uri,
            "code": target.code,
            "path": target.path,
            "line": target.line,
            "cell": target.cell,
        }
        offered = []
        if finding.fix is not None:
            safe = finding.fix.safe
            note = "" if safe else " (unsafe: can change what was meant)"
            offered.append(
                types.CodeAction(
                    f"{finding.code}: {finding.fix.title}{note}",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[told],
                    is_preferred=safe,
                    data={**data, "do": "fix"},
                )
            )
        if target.cell is None and finding.code != "FL000":
            offered.append(
                types.CodeAction(
                    f"{finding.code}: Silence it here",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[told],
                    data={**data, "do": "silence"},
                )
            )
        return offered

    async def resolved(self, action: types.CodeAction) -> types.CodeAction:
        """The action with its edit: made and read again by the reader, so that what is offered holds."""
        data: Any = action.data
        if not isinstance(data, dict) or "uri" not in data:  # none of ours
            return action
        projects = documents_of(self.workspace)
        uri = data["uri"]
        project = next((p for p in projects.values() if p.place(uri) is not None), None)
        if project is None:
            return action
        try:
            changes = await asyncio.to_thread(self._changed_by, data, project)
        except FalllineError as error:
            self._complain(project.folder, str(error))
            return action
        if changes:
            action.edit = self._edit(changes, project)
        else:
            self.window_show_message(
                types.ShowMessageParams(
                    types.MessageType.Info,
                    "fallline: this fix does not help here: its finding is still there, "
                    "or a new one has appeared. Nothing was changed.",
                )
            )
        return action

    def _changed_by(self, data: dict[str, Any], project: Documents) -> list[Change]:
        folder, contents = project.folder, project.contents
        if data["do"] == "fix all":
            path, _ = project.place(data["uri"]) or ("", None)
            changes = self.worker.fixed(folder, contents, None, False)
            return [change for change in changes if change.path == path]
        # an editor may drop what is null on the way back
        target = Target(data["code"], data["path"], data["line"], data.get("cell"))
        if data["do"] == "silence":
            return self.worker.silenced(folder, contents, target)
        return self.worker.fixed(folder, contents, target, True)

    def _edit(self, changes: list[Change], project: Documents) -> types.WorkspaceEdit:
        edits: list[Any] = []
        for change in changes:
            uri = project.address(change.path, change.cell)
            if uri is not None:
                document = types.OptionalVersionedTextDocumentIdentifier(
                    uri, project.versions.get(uri)
                )
                made = convert.text_edits(
                    change.before, change.after, self.workspace.position_codec
                )
                edits.append(types.TextDocumentEdit(document, made))
        if self._understands_versions():
            return types.WorkspaceEdit(document_changes=edits)
        return types.WorkspaceEdit(changes={e.text_document.uri: e.edits for e in edits})

    def _understands_versions(self) -> bool:
        workspace = self.client_capabilities.workspace
        edit = workspace.workspace_edit if workspace is not None else None
        return bool(edit is not None and edit.document_changes)

    # -- hover ---------------------------------------------------------------------------------------------------

    def hover(self, params: types.HoverParams) -> types.Hover | None:
        """The rule's document, over a finding and over a code in a comment."""
        uri, at = params.text_document.uri, params.position
        point = types.Range(at, at)
        for finding, told in self.told.get(uri, []):
            rule = rule_by_code(finding.code)
            if rule is not None and _meet(told.range, point):
                return _hover(convert.explained(rule, finding), told.range)
        document = self._open(uri)
        if document is None:
            return None
        lines = split_lines(document.source)
        column = self.workspace.position_codec.position_from_client_units(lines, at).character
        for match in _CODE.finditer(lines[at.line] if at.line < len(lines) else ""):
            rule = rule_by_code(match[0])
            if rule is not None and match.start() <= column <= match.end():
                return _hover(convert.explained(rule), None)
        return None


def make_server() -> Server:
    """The server with its features; `start_io()` serves."""
    server = Server()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    async def changed(ls: Server, params: object) -> None:
        ls.changed()

    @server.feature(types.INITIALIZED)
    async def initialized(ls: Server, params: types.InitializedParams) -> None:
        await _watch_files(ls)

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions([types.CodeActionKind.QuickFix, _FIX_ALL], resolve_provider=True),
    )
    async def actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
        return await ls.actions(params)

    @server.feature(types.CODE_ACTION_RESOLVE)
    async def resolve(ls: Server, action: types.CodeAction) -> types.CodeAction:
        return await ls.resolved(action)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
        return ls.hover(params)

    @server.feature(types.SHUTDOWN)
    def shutdown(ls: Server, params: object) -> None:
        ls.stop()

    return server


async def _watch_files(server: Server) -> None:
    """Ask to be told when files change on the disk: another branch, another editor, the settings."""
    workspace = server.client_capabilities.workspace
    watched = workspace.did_change_watched_files if workspace is not None else None
    if watched is None or not watched.dynamic_registration:
        return
    patterns = [types.FileSystemWatcher(p) for p in ("**/*.py", "**/*.ipynb", "**/pyproject.toml")]
    await server.client_register_capability_async(
        types.RegistrationParams(
            [
                types.Registration(
                    id="fallline-files",
                    method=types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                    register_options=types.DidChangeWatchedFilesRegistrationOptions(patterns),
                )
            ]
        )
    )


def _text_of(document: TextDocument) -> str:
    """What is in a document that may not be open: pygls takes every file on disk for UTF-8."""
    try:
        return str(document.source)
    except UnicodeDecodeError:
        with open(document.path, "rb") as file:
            data = file.read()
        try:
            return decode(data)[0]
        except UnreadableError:  # which is the finding
            return data.decode(errors="replace")


def _hover(text: str, over: types.Range | None) -> types.Hover:
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), over)


def _meet(one: types.Range, other: types.Range) -> bool:
    return _at(one.start) <= _at(other.end) and _at(other.start) <= _at(one.end)


def _at(position: types.Position) -> tuple[int, int]:
    return (position.line, position.character)


def _within(kind: str | None, wanted: str) -> bool:
    """Kinds are hierarchical: `source` asks for `source.fixAll` too."""
    return kind is not None and (kind == wanted or kind.startswith(f"{wanted}."))

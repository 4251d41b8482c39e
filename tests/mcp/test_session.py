"""Real sessions with `fallline mcp`: over standard input and output, and over HTTP on this machine."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp import Client, StdioServerParameters

from .conftest import CLIPS_LATE

SERVE = [sys.executable, "-m", "fallline", "mcp"]


async def visit(client: Client) -> None:
    """What an agent does in one session: looks round, checks, fixes, meets an error, reads on."""
    assert {"ask", "check_code"} <= {tool.name for tool in (await client.list_tools()).tools}
    checked = await client.call_tool("check_path", {"path": "train.py"})
    assert checked.structured_content is not None
    assert [f["code"] for f in checked.structured_content["findings"]] == ["FL101"]
    fixed = await client.call_tool("fix_code", {"code": CLIPS_LATE})
    assert fixed.structured_content is not None and fixed.structured_content["changed"]
    refused = await client.call_tool("check_path", {"path": "../outside/secret.py"})
    assert refused.is_error and "leads out of the root" in refused.content[0].text
    rule = await client.read_resource("fallline://rules/FL101")
    assert "clip-after-step" in rule.contents[0].text


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_over_standard_input_and_output(root: Path, mode: str) -> None:
    command = StdioServerParameters(command=SERVE[0], args=[*SERVE[1:], "--root", str(root)])
    async with Client(command, mode=mode) as client:  # type: ignore[arg-type]
        await visit(client)


@pytest.fixture
def url(root: Path) -> Iterator[str]:
    """A server over HTTP, at a port that was free."""
    command = [*SERVE, "--http", "--port", "0", "--root", str(root)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        words = server.stderr.readline().split()
        found = words[-1]
        _wait_for(found)
        yield found
    finally:
        server.terminate()
        server.communicate(timeout=300)


def _wait_for(url: str) -> None:
    import socket
    import time

    port = int(url.split(":")[2].split("/")[0])
    for _ in range(6000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nobody answers at {url}")


@pytest.mark.anyio
async def test_a_session_over_http(url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    async with Client(url) as client:
        await visit(client)


def test_another_host_is_refused(url: str) -> None:
    """A web page that rebinds its name to this machine gets nothing."""
    request = urllib.request.Request(
        url,
        data=b"{}",
        headers={
            "Host": "evil.example",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=300)
    assert refused.value.code in (403, 421)


def test_a_port_that_is_taken(fallline: Callable[..., object]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = fallline("mcp", "--http", "--port", str(taken.getsockname()[1]))
    assert ran.status == 2 and "cannot be used" in ran.err  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "9"), "--port belongs to --http"),
        (("--root", "nothing-here"), "is not a folder"),
        (("--http", "--port", "99999"), "cannot be used"),
    ],
)
def test_wrong_usage(
    fallline: Callable[..., object], arguments: tuple[str, ...], words: str
) -> None:
    ran = fallline("mcp", *arguments)
    assert ran.status == 2 and words in ran.err  # type: ignore[attr-defined]


def test_without_the_extra(
    fallline: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fallline.mcp.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    ran = fallline("mcp")
    assert ran.status == 2 and "pip install 'fallline[mcp]'" in ran.err  # type: ignore[attr-defined]

"""The site: built strictly without a network, its pages opened in a browser that has none either. `make test-long`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parent.parent
# One of each kind; the others are made by the same templates.
PAGES = [
    *sorted(f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")),
    "rules/index.html",
    "rules/FL201-clip-scaled.html",
    "rules/FL620-loss-nonfinite.html",
    "specialists/index.html",
    "specialists/gradient-management.html",
    "results.html",
    "changelog.html",
    "contributing.html",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        # nothing can be fetched: every request goes to a port where nobody listens
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr
    return folder


class Server(ThreadingHTTPServer):
    """Serves the site, and stands in for the rest of the world: what is asked of other hosts is noted and refused."""

    def __init__(self, site: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(site)))
        self.elsewhere: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        if not self.path.startswith("/"):
            self.server.elsewhere.append(self.path)


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[Server]:
    made = Server(site)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()


def test_no_page_takes_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
        r"|<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next))[^>]*\bhref=[\"']?(?:https?:)?//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 120
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page


def opened(page: str, server: Server, profile: Path) -> tuple[str, list[str]]:
    """A page after its scripts have run, and what was wrong: words on the console, requests to other hosts."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "chromium is needed: apt-get install chromium, or set CHROMIUM"
    server.elsewhere.clear()
    ran = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            f"--proxy-server={server.address}",
            "--proxy-bypass-list=127.0.0.1",
            f"--user-data-dir={profile}",
            "--dump-dom",
            f"http://{server.address}/{page}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    # what the browser asks for on its own behalf is not the page's doing
    asked = [host for host in server.elsewhere if "google" not in host and "gstatic" not in host]
    return ran.stdout, [*said, *asked]


@pytest.mark.parametrize("page", PAGES)
def test_a_browser_has_nothing_to_complain_about(page: str, server: Server, tmp_path: Path) -> None:
    shown, wrong = opened(page, server, tmp_path)
    assert not wrong
    assert "<h1" in shown and "md-content" in shown


def test_the_browser_would_complain(site: Path, server: Server, tmp_path: Path) -> None:
    page = '<script src="https://example.com/a.js"></script><script>b()</script>'
    (site / "wrong.html").write_text(page)
    _, wrong = opened("wrong.html", server, tmp_path)
    assert "b is not defined" in wrong[0]
    assert "example.com:443" in wrong

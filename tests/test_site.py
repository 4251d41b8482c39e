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


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_no_page_takes_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
        r"|<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next))[^>]*\bhref=[\"']?(?:https?:)?//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 120
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page


def opened(url: str, profile: Path) -> tuple[str, list[str]]:
    """A page after its scripts have run, and what the browser's console said about it."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "chromium is needed: apt-get install chromium, or set CHROMIUM"
    ran = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={profile}",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("page", PAGES)
def test_a_browser_has_nothing_to_complain_about(page: str, address: str, tmp_path: Path) -> None:
    shown, said = opened(f"{address}/{page}", tmp_path)
    assert not said
    assert "<h1" in shown and "md-content" in shown


def test_the_browser_would_complain(site: Path, address: str, tmp_path: Path) -> None:
    (site / "wrong.html").write_text(
        '<script src="https://example.com/a.js"></script><script>b()</script>'
    )
    _, said = opened(f"{address}/wrong.html", tmp_path)
    assert len(said) == 2

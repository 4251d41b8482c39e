"""The page: self-contained, escaped, complete, small; and, in a real browser, quiet and never too wide."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fallline.conclude import findings_of
from fallline.report.charts import Chart, Line, Mark, extremes
from fallline.report.html import page
from fallline.report.html_heatmap import heat_map, png
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.show.numbers import number

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, run_maker: Callable[..., Path]) -> Series:
    home = tmp_path_factory.mktemp("page")
    (home / "train.py").write_text(
        "x = '<script>'\nloss.backward()\noptimizer.step()\n" + "y = 1  # " + "long " * 80 + "\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", "1")
        return read_run(run_maker(home / "run", ranks=3))


@pytest.fixture(scope="module")
def html(run: Series) -> str:
    return page(run, findings_of(run))


class Balance(HTMLParser):
    """Whether every tag is closed where it should be."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [
            v for k, v in attrs if k in {"src", "href"} and v and not v.startswith("data:")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass  # a path of an SVG closes itself

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_well_formed_and_asks_nothing_of_the_network(html: str) -> None:
    seen = Balance()
    seen.feed(html)
    assert (seen.open, seen.wrong, seen.outside) == ([], [], [])
    assert not re.search(r"(https?:)?//[a-z]", html), "no address of anything"
    assert len(html) < 400_000


def test_everything_is_there(html: str) -> None:
    for part in (
        "Loss", "Gradient norm", "clip threshold", "Learning rate", "Loss scale", "Memory", "Gradient flow by depth",
        "Gradient norm by layer over time", "Time of an update", "straggler", "FL101", "loss.backward()", "Instead.",
    ):  # fmt: skip
        assert part in html, part
    assert "prefers-color-scheme:dark" in html


def test_only_a_rank_that_a_finding_calls_slow_is_marked(run: Series, html: str) -> None:
    found = findings_of(run)
    (slow,) = [f for f in found if f.code == "FL321"]
    assert slow.evidence["late"] == [2] and html.count('class="slow"') == 1
    assert 'class="slow"' not in page(run, [f for f in found if f.code != "FL321"])


def test_what_users_wrote_is_text_and_not_markup(html: str) -> None:
    assert "clipped &lt;b&gt;late&lt;/b&gt;" in html and "<b>late" not in html
    assert "&lt;script&gt;" in html and "layers.0.&lt;weight&gt;" in html


def test_a_run_with_nothing_in_it_still_makes_a_page() -> None:
    assert "made no update" in page(Series(), [])


def test_no_spike_is_lost_when_points_are_thinned() -> None:
    points = [(float(i), 1.0) for i in range(50_000)]
    points[12_345] = (12_345.0, 99.0)
    points[23_456] = (23_456.0, -5.0)
    kept = extremes(points)
    assert len(kept) <= 600 and {99.0, -5.0} <= {y for _, y in kept}
    assert kept == sorted(kept)


def test_lines_break_where_numbers_are_missing() -> None:
    drawn = Chart(
        "Loss", [Line("loss", [(0, 1.0), (1, 2.0), (2, float("nan")), (3, 1.0), (4, 2.0)], "loss")]
    ).html()
    assert drawn.count("M", drawn.index('class="line"'), drawn.index("</svg>")) == 2
    assert 'class="lost"' in drawn
    assert Chart("Loss", [Line("loss", [(0, float("nan"))], "loss")]).html() == ""


def test_numbers_are_short() -> None:
    shown = [
        number(v)
        for v in (0, 1234567, 0.00001234, 12345, 0.1 + 0.2, float("nan"), float("-inf"), None)
    ]
    assert shown == ["0", "1.23e6", "1.23e-5", "12,345", "0.3", "NaN", "-Inf", "–"]


def test_a_heat_map_is_a_small_picture() -> None:
    assert png([[(0, 0, 0, 255)] * 3] * 2).startswith(b"\x89PNG")
    drawn = heat_map(["a", "b"], [0, 5], [[-1.0, None], [float("-inf"), 2.0]])
    assert "data:image/png;base64," in drawn and heat_map(["a"], [0], [[None]]) == ""


# -- in a browser ------------------------------------------------------------------------------------------------

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
# The page reports on itself: errors, and what is wider than the window.
PROBE = """<script>
const errors=[];addEventListener("error",e=>errors.push(String(e.message)));
addEventListener("load",()=>{
 for(const chart of document.querySelectorAll(".canvas"))for(const kind of ["pointermove","pointerleave"]){
  const box=chart.getBoundingClientRect();
  chart.dispatchEvent(new PointerEvent(kind,{clientX:box.left+box.width*.9,clientY:box.top+20}))}
 const wide=[...document.querySelectorAll("main *")].filter(e=>e.getBoundingClientRect().right>innerWidth+1&&!e.closest("pre,.scroll"));
 document.title="errors="+errors.length+" width="+innerWidth+" overflow="+(document.documentElement.scrollWidth-innerWidth)
  +" wide="+wide.length+" charts="+document.querySelectorAll("svg").length+" "+errors.join("|");
 parent.postMessage(document.title,"*")})</script>"""


@in_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_it_without_errors_and_without_overflow(
    html: str, width: int, dark: bool, tmp_path: Path
) -> None:
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(html.replace("<style>", PROBE + "<style>", 1))
    # a window of headless Chromium is at least 500 pixels wide, a frame is as wide as it is told
    (tmp_path / "frame.html").write_text(
        f'<body><iframe src="page.html" style="border:0;width:{width}px;height:900px"></iframe>'
        '<script>addEventListener("message",e=>document.body.append(e.data))</script>'
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--allow-file-access-from-files",
    ]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'data'}",
    ]
    flags += [
        "--window-size=1400,1000",
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
        "--v=0",
    ]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = re.search(
        r"errors=(\d+) width=(\d+) overflow=(-?\d+) wide=(\d+) charts=(\d+)([^<]*)", done.stdout
    )
    assert report is not None, done.stdout[-500:] + done.stderr[-500:]
    errors, seen_width, overflow, wide, charts = (int(report[i]) for i in range(1, 6))
    assert (errors, seen_width, wide) == (0, width, 0), report[0]
    assert overflow <= 0 and charts >= 6
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []


def test_evidence_reads_as_words_not_as_json() -> None:
    from fallline.report.html_findings import _value

    tensor = {"shape": [8, 1], "dtype": "float32", "min": 0.0}
    assert _value([tensor, tensor]) == "; ".join(["shape 8×1, dtype float32, min 0"] * 2)
    assert _value({"shape": [], "inf": 1}) == "shape scalar, inf 1"
    assert _value(["a", 2]) == "a, 2"
    assert _value(list(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_labels_of_neighbouring_findings_do_not_lie_on_each_other() -> None:
    marks = [Mark(at, f"FL{at}") for at in (410, 472, 20, 590, 540)]
    chart = Chart("Loss", [Line("loss", [(0.0, 1.0), (600.0, 2.0)], "loss")], marks=marks).html()
    tops = [int(t) for t in re.findall(r'<b[^>]* style="top:(-?\d+)px">FL', chart)]
    assert tops == [-2, 12, -2, 26, 40]  # 590 and 540 are written to the left, over 472's and 410's

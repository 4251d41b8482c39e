"""Whether a file is a unit test, or a benchmark: it exercises training code on a handful of numbers, and nothing that it trains is kept.

A research repository calls its evaluation `test.py` or `test_net.py` too, so the name alone does not decide: a unit test also
imports a test framework, or asserts in functions without data of their own.
"""

from __future__ import annotations

import re

__all__ = ["is_benchmark", "is_unit_test", "made_up", "times_only"]

_NAMED = re.compile(r"(^|[/\\])(test_[^/\\]*|[^/\\]*_tests?|tests|conftest)\.py$")
_IN_FOLDER = re.compile(r"(^|[/\\])(\w+[_-])?(unit_?)?tests?[/\\]")
_BENCHMARK = re.compile(
    r"(?i)(^|[/\\])(bench|benchmarks?|profiling)[/\\]|(^|[/\\_])(bench|benchmark|profil(e|er|ing)|throughput)(_[^/\\]*)?\.py$"
)
_TIMES = re.compile(
    r"\b(perf_counter|default_timer|timeit|time\.time|cuda\.Event|do_bench|utils\.benchmark|profile)\b"
)
_PROFILES = re.compile(r"(?i)profiler|export_chrome_trace|export_memory_(timeline|summary)")
_TIMED = re.compile(
    r"(?i)bench|profil|throughput|latency|\b(time|speed) and\b|consumption|used average time"
)
_FRAMEWORK = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:pytest|unittest|absl\.testing|parameterized|hypothesis|torch\.testing|testing_utils|common_utils)\b",
    re.M,
)
# A script that tries a model out: numbers made up on the spot, and nothing read or written.
_MADE_UP = re.compile(r"torch\.(rand|randn|randint|ones|zeros)\(")
_REAL = re.compile(r"DataLoader|Dataset|torch\.(load|save)\(|argparse|open\(")
_TEST = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+test_\w*\((?:self)?\)", re.M)
_ASSERTS = re.compile(r"^[ \t]+(?:assert\b|self\.assert|torch\.testing|np\.testing)", re.M)


def is_unit_test(path: str, text: str) -> bool:
    """By its name or folder, and by what it holds."""
    if "test" not in path or not (_NAMED.search(path) or _IN_FOLDER.search(path)):
        return False
    if _FRAMEWORK.search(text) is not None:
        return True
    if _TEST.search(text) is not None and _ASSERTS.search(text) is not None:
        return True
    both = _NAMED.search(path) is not None and _IN_FOLDER.search(path) is not None
    return both and made_up(text)


def made_up(text: str) -> bool:
    """Code that works on numbers made up on the spot, and reads and writes nothing."""
    return _MADE_UP.search(text) is not None and _REAL.search(text) is None


def times_only(name: str, text: str) -> bool:
    """A function that runs a step to time it: by its name or its documentation, and because it reads a clock."""
    return _TIMES.search(text) is not None and _TIMED.search(f"{name} {text[:600]}") is not None


def is_benchmark(path: str, text: str) -> bool:
    """By its name or folder, and because it reads a clock or asks a profiler: it runs a training step to time it."""
    if _BENCHMARK.search(path) is None:
        return False
    return _TIMES.search(text) is not None or _PROFILES.search(text) is not None

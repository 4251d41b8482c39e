"""OpenTelemetry: `log="opentelemetry"` gives the numbers as gauges to the meter provider that the script has set; if it has set
none, to the collector named in OTEL_EXPORTER_OTLP_ENDPOINT. Without either nothing is exported, and that is said.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from fallline.errors import UsageError
from fallline.finding import Finding
from fallline.integrations.logger import Sink

__all__ = ["OpenTelemetry"]


class OpenTelemetry(Sink):
    """`provider`: a MeterProvider; None: the script's, or one of our own."""

    def __init__(self, provider: Any = None) -> None:
        self.provider = provider
        self._own = False
        self._meter: Any = None
        self._gauges: dict[str, Any] = {}
        self._run = ""

    def attach(self) -> None:
        if self.provider is None and "opentelemetry.sdk.metrics" in sys.modules:
            from opentelemetry import metrics
            from opentelemetry.sdk.metrics import MeterProvider

            there = metrics.get_meter_provider()
            if isinstance(there, MeterProvider):
                self.provider = there

    def open(self, folder: Path) -> None:
        if self.provider is None:
            self.provider, self._own = _provider(), True
        self._run = folder.name
        self._meter = self.provider.get_meter("fallline")
        self._findings = self._meter.create_counter("fallline.findings")

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        about = {"run": self._run}
        for name, value in {**numbers, "fallline/step": float(step)}.items():
            if math.isfinite(value):
                gauge = self._gauges.get(name)
                if gauge is None:
                    gauge = self._gauges[name] = self._meter.create_gauge(_name(name))
                gauge.set(value, about)

    def finding(self, finding: Finding) -> None:
        self._findings.add(
            1, {"run": self._run, "code": finding.code, "severity": finding.severity.value}
        )

    def close(self) -> None:
        if self._own:
            self.provider.shutdown()


def _provider() -> Any:
    """One that exports to the collector that the environment names. It asks nobody where that might be."""
    if not any(
        os.environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    ):
        raise UsageError(
            'log="opentelemetry" needs a meter provider set by the script, or OTEL_EXPORTER_OTLP_ENDPOINT: fallline sends nothing to an address that '
            "you have not named"
        )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])


def _name(text: str) -> str:
    """Letters, digits, and _ . - / are allowed."""
    return text.replace("/", ".").replace("#", "-")

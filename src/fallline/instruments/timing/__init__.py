"""Time: the training thread's phases (clock), what the device did (device_trace), other ways to load (loader)."""

from __future__ import annotations

from fallline.instruments.timing.measure import Timing, measure_time

__all__ = ["Timing", "measure_time"]

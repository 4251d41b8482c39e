"""Memory: every storage from birth to death (ledger), what is left behind (growth), what the CUDA allocator says, remedies and their tries."""

from __future__ import annotations

from fallline.instruments.memory.measure import Memory, measure_memory

__all__ = ["Memory", "measure_memory"]

"""Findings and runs → what people and machines see. Each output format of `fallline check` is one module."""

"""The one transform of torchaudio that is used, and where its data set would be."""

from torchaudio import datasets, transforms

__all__ = ["datasets", "transforms"]

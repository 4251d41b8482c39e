"""The parts of torchnet that are used: lists as data sets, transforms, and a mean."""

from torchnet import dataset, meter, transform

__all__ = ["dataset", "meter", "transform"]

"""A custom autograd Function, asked everything that training will ask of it."""

from fallline.instruments.function.check import check_function
from fallline.instruments.function.report import FunctionReport

__all__ = ["FunctionReport", "check_function"]

"""The reader: source text → syntax → names → loops executed on paper → events. Never imports torch, judges nothing.

From the ground up: values and what calls do are in `fallline.api`; `machine` is the state of one execution, and what
expressions, statements and calls meet in (`language` puts them together); `roots` are the places to begin, `switches` the
settings to try, `execute` makes the traces of a file. `fallline.verdict` judges them.
"""

from fallline.reader.execute import traces_of

__all__ = ["traces_of"]

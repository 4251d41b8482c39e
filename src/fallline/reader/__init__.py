"""The reader: source text → syntax → names → loops executed on paper → events → findings. Never imports torch.

read_text(text, path)        one file, from memory
read_paths(paths)            a project: names across files, in parallel
"""

from fallline.reader.project import read_paths
from fallline.reader.read import Reading, read_text

__all__ = ["Reading", "read_paths", "read_text"]

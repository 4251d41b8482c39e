"""`python -m fallline`, which is what torchrun and minimal environments use.

`python -m` puts the current folder first on the path, so that `import statistics` would run a `statistics.py` of the project
that is only to be read. It gives way to the folder of the program, as when `fallline` is called by its name.
"""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(sys.executable)

    from fallline.cli.main import entry

    entry()

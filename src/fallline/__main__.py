"""`python -m fallline`, which is what torchrun and minimal environments use."""

from fallline.cli.main import entry

if __name__ == "__main__":
    entry()

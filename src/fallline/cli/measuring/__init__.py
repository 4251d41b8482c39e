"""The verbs of `fallline measure`, one file each."""

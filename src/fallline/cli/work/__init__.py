"""One module a command: what it does, once its options are read. Imported when it runs, so `--help` stays quick."""

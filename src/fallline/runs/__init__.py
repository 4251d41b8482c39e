"""A run on disk: one SQLite file for each rank, its findings, and how both are read again. Needs no torch."""

"""The experiments, by specialist."""

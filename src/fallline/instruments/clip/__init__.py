"""From a run's own numbers: a clip threshold, a useful batch size, a learning rate."""

"""What the first batches of a run teach, and what can learn from them: `measure data` shows it, the watcher reports it."""

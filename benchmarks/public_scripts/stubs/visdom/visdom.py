"""Only imported: nothing is shown."""
